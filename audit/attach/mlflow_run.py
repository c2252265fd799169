"""A run of MLflow as a report: `mlflow:DATABASE#RUN`, with SQLite tracking.

Its content is a canonical JSON snapshot: parameters, the history of every metric, tags and digests of artifacts,
without what `audit attach` adds. The pointer is in tags that start with `audit.`; the signed statements are the
artifact `audit/attachment.intoto.jsonl`, so they travel with the run.

Attach a run's evidence to a run of MLflow.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from audit.attach.bind import Attached, AttachOrder, attachable, evidence_of, model_of, record
from audit.attach.interface import pointer
from audit.attach.statement import Statement, digest, line_of
from audit.attach.subject import compare_models
from audit.attest.facts import tool
from audit.attest.statement import sign
from audit.errors import UserError, needs
from audit.store import Store
from audit.store.base.canonical import to_json

if TYPE_CHECKING:
    from mlflow import MlflowClient

SCHEME: Final = "mlflow:"
FOLDER: Final = "audit"
BUNDLE: Final = "audit/attachment.intoto.jsonl"
OWN_TAGS: Final = "audit."
NAME: Final = "mlflow"


@dataclass(frozen=True, slots=True)
class MlflowRun:
    """A run of MLflow: the tracking database and the run's identifier."""

    database: Path
    run: str

    @property
    def name(self) -> str:
        """Its name as a subject of statements."""
        return f"mlflow-run/{self.run}"

    def snapshot(self) -> bytes:
        """The run's content as canonical JSON.

        Raises:
            UserError: no such database or run, or MLflow is not installed.
        """
        client = self._client()
        result = self._found(client)
        metrics = {key: _history(client, self.run, key) for key in sorted(result.data.metrics)}
        tags = {key: value for key, value in result.data.tags.items() if not key.startswith(OWN_TAGS)}
        content = {
            "run": self.run,
            "status": result.info.status,
            "params": dict(result.data.params),
            "metrics": metrics,
            "tags": tags,
            "artifacts": dict(_artifacts(client, self.run)),
        }
        return to_json(content).encode("ascii")

    def models_of(self) -> tuple[str, ...]:
        """The model that a parameter names."""
        params = self._found(self._client()).data.params
        return tuple(dict.fromkeys(params[key] for key in ("model", "model_name") if params.get(key)))

    def bundle(self) -> bytes | None:
        """The signed statements of the run; None without any."""
        client = self._client()
        self._found(client)
        if BUNDLE not in {item.path for item in client.list_artifacts(self.run, FOLDER)}:
            return None
        with tempfile.TemporaryDirectory() as folder:
            return Path(client.download_artifacts(self.run, BUNDLE, folder)).read_bytes()

    def write(self, predicate: Mapping[str, Any], bundle: bytes) -> None:
        """Set the pointer's tags and put the statements beside the run's artifacts."""
        client = self._client()
        for key, value in pointer(predicate).items():
            client.set_tag(self.run, f"{OWN_TAGS}{key}", str(value))
        client.log_text(self.run, bundle.decode("ascii"), BUNDLE)

    def _client(self) -> MlflowClient:
        if not self.database.is_file():
            raise UserError(f"{self.database}: no such tracking database of MLflow; write mlflow:DATABASE#RUN")
        with needs("attach"):
            from mlflow import MlflowClient
        return MlflowClient(f"sqlite:///{self.database.resolve()}")

    def _found(self, client: MlflowClient) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            return client.get_run(self.run)
        except MlflowException as error:
            raise UserError(f"{self.database}: no run {self.run}: {str(error).splitlines()[0]}") from error


def parse(text: str) -> MlflowRun | None:
    """The run of `mlflow:DATABASE#RUN`; None for the path of a file. Raises UserError: it names no run."""
    if not text.startswith(SCHEME):
        return None
    database, _, run = text.removeprefix(SCHEME).rpartition("#")
    if not database or not run:
        raise UserError(f"{text}: names no run of MLflow; write mlflow:DATABASE#RUN")
    return MlflowRun(Path(database), run)


def _history(client: MlflowClient, run: str, key: str) -> list[list[Any]]:
    return sorted([item.step, item.timestamp, item.value] for item in client.get_metric_history(run, key))


def _artifacts(client: MlflowClient, run: str, folder: str | None = None) -> Iterator[list[str]]:
    """Path and digest of each artifact that is not ours."""
    for item in client.list_artifacts(run, folder):
        if item.path == FOLDER:
            continue
        if item.is_dir:
            yield from _artifacts(client, run, item.path)
            continue
        with tempfile.TemporaryDirectory() as place:
            content = Path(client.download_artifacts(run, item.path, place)).read_bytes()
        yield [item.path, hashlib.sha256(content).hexdigest()]


def attach_mlflow(store: Store, name: str, target: MlflowRun, order: AttachOrder, now: datetime) -> Attached:
    """Attach the run called `name`, with a signed statement among the run's artifacts.

    Raises:
        UserError: no key, no such run on either side, a run that failed, or another model.
        CannotDecide: the run is unfinished or its record is not intact.
    """
    if not order.keys:
        raise UserError("a run of MLflow gets a signed statement; add --key")
    run, checks = attachable(store, name, failed=order.failed)
    sha256 = digest(target.snapshot())
    predicate = {
        **evidence_of(run, checks),
        "model": model_of(order, compare_models(target.models_of(), run)),
        "generated_by_run": False,
        "report": {"name": target.name, "format": NAME, "sha256": sha256},
        "tool": tool(),
    }
    statement = Statement(target.name, sha256, sha256, str(predicate["record_root"]), predicate)
    signed = sign(statement.in_toto(), order.keys)
    earlier = target.bundle() or b""
    record(store, statement, str(order.report), signed, now)
    target.write(predicate, earlier + line_of(signed))
    return Attached(statement, order.report, order.report)
