"""Attach a run's evidence to a run of MLflow."""

from __future__ import annotations

from datetime import datetime

from audit.attach import sidecar
from audit.attach.bind import Attached, AttachOrder, attachable, evidence_of, model_of, record
from audit.attach.mlflow_run import NAME, MlflowRun
from audit.attach.statement import Statement, digest
from audit.attach.subject import compare_models
from audit.attest.facts import tool
from audit.errors import UserError
from audit.store import Store


def attach_mlflow(store: Store, name: str, target: MlflowRun, order: AttachOrder, now: datetime) -> Attached:
    """Attach the run called `name`, with a signed statement among the run's artifacts.

    Raises:
        UserError: no key, no such run on either side, a run that failed, or another model.
        CannotDecide: the run is unfinished or its record is not intact.
    """
    if not order.keys:
        raise UserError("a run of MLflow gets a signed statement; add --key")
    found = attachable(store, name, failed=order.failed)
    content = target.snapshot()
    predicate = {
        **evidence_of(found.run, found.checks),
        "model": model_of(order, compare_models(target.models_of(), found.run)),
        "generated_by_run": False,
        "report": {"name": target.name, "format": NAME, "sha256": digest(content)},
        "tool": tool(),
    }
    sha256 = digest(content)
    statement = Statement(target.name, sha256, sha256, str(predicate["record_root"]), predicate)
    signed = sidecar.signed(statement, order.keys)
    earlier = target.bundle() or b""
    record(store, statement, str(order.report), signed, now)
    target.write(predicate, earlier + sidecar.line_of(signed))
    return Attached(statement, order.report, order.report)
