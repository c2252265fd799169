"""A log of Inspect (`.eval`): the evidence is metadata of the log, by Inspect's own API with its edit history.

Inspect writes the file anew, so its bytes before cannot be restored; the statement keeps their digest. The API reads
and writes files, so the bytes pass through a temporary one.
"""

import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from audit.attach.interface import KEY, PointedReport
from audit.errors import needs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InspectLog(PointedReport):
    """A log in Inspect's binary format."""

    def models_of(self, report: bytes) -> tuple[str, ...]:
        """The model of the evaluation."""
        return _with_file(report, lambda path: (str(_header(path).eval.model),))

    def extract(self, report: bytes) -> Mapping[str, Any] | None:
        """The log's metadata `audit`, edits applied."""
        block = _with_file(report, lambda path: (_header(path).metadata or {}).get(KEY))
        return json.loads(block) if isinstance(block, str) else None

    def embed(self, report: bytes, block: Mapping[str, Any]) -> bytes:
        """The log with the evidence as metadata, and an entry of its edit history."""
        return _with_file(report, lambda path: _edited(path, block))

    def remove(self, report: bytes) -> None:  # noqa: ARG002 - the interface's signature
        """Always None: Inspect rewrote the log, so the original bytes are lost."""
        return


def _edited(path: Path, block: Mapping[str, Any]) -> bytes:
    from inspect_ai.log import MetadataEdit, ProvenanceData, edit_eval_log, write_eval_log

    # as text, since Inspect rounds and reorders what it parses
    edit = MetadataEdit(metadata_set={KEY: json.dumps(block)})
    why = ProvenanceData(author="specaudit", reason=f"audit attach: evidence of run {block['run']}")
    write_eval_log(edit_eval_log(_header(path), [edit], why), str(path), header_only=True)
    return path.read_bytes()


def _header(path: Path) -> Any:
    from inspect_ai.log import read_eval_log

    return read_eval_log(str(path), header_only=True)


def _with_file(report: bytes, work: Callable[[Path], T]) -> T:
    """Run on a temporary copy; raises ValueError for what Inspect cannot read."""
    with needs("attach"):
        import inspect_ai.log  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.eval"
        path.write_bytes(report)
        try:
            return work(path)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(f"Inspect cannot read it: {error}") from error


FORMAT = InspectLog("inspect", lambda name, report: name.endswith(".eval") and report.startswith(b"PK"), whole=True)
