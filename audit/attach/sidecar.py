"""The signed statements of a report: `.audit/NAME.intoto.jsonl` an in-toto bundle of one envelope per line.

The folder is hidden and the suffix is no report's, so the viewers of evaluations list neither.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from audit.attach.statement import MAX_STATEMENT_BYTES, Statement
from audit.attest.envelope import SignedStatement, sign, unverified
from audit.attest.statement import InToto, StatementSubject
from audit.errors import UserError
from audit.store.base.keys import PrivateKey
from audit.text.documents import mistake, read_bytes

FOLDER: Final = ".audit"


def sidecar_path(report: Path) -> Path:
    """Where the signed statements of a report are."""
    return report.parent / FOLDER / f"{report.name}.intoto.jsonl"


def signed(statement: Statement, keys: Sequence[PrivateKey]) -> SignedStatement:
    """The statement in an envelope."""
    document = statement.to_json()
    subjects = tuple(StatementSubject(item["name"], item["digest"]["sha256"]) for item in document["subject"])
    return sign(InToto(subjects, document["predicateType"], document["predicate"]), keys)


def line_of(item: SignedStatement) -> bytes:
    """An envelope as one line."""
    return json.dumps(json.loads(item.text)).encode("ascii") + b"\n"


def with_line(path: Path, item: SignedStatement, *, replace: bool) -> bytes:
    """The bundle at the path, if there is one, with a further envelope; `replace` drops those of the same run.

    Raises:
        UserError: the file is no bundle.
    """
    earlier = envelopes(path) if path.exists() else ()
    run = item.statement.predicate["run"]
    kept = [line for line in earlier if not (replace and _run_of(line, path) == run)]
    return b"".join([*(line + b"\n" for line in kept), line_of(item)])


def _run_of(line: bytes, path: Path) -> object:
    return unverified(line, str(path)).statement.predicate.get("run")


def envelopes(path: Path) -> tuple[bytes, ...]:
    """The envelopes of a bundle.

    Raises:
        UserError: the file is empty or cannot be read.
    """
    lines = tuple(line for line in read_bytes(path, MAX_STATEMENT_BYTES).splitlines() if line.strip())
    if not lines:
        raise mistake(str(path), None, "it holds no statement")
    return lines


def make_folder(path: Path) -> None:
    """Make the folder of a bundle.

    Raises:
        UserError: it cannot be made.
    """
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{path.parent}: cannot be made ({error.strerror}); name a place with --statement") from error
