"""`audit attach`: bind a run's evidence to an evaluation report. Knows no report format."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from audit.attach import REGISTRY, mlflow_run
from audit.attach.bind import Attached, AttachOrder, attach
from audit.attach.verify import evidence_lines
from audit.errors import UserError
from audit.report.tables.verdicts import faults_of, marked_name
from audit.store import Store
from audit.store.base import keys
from audit.terminal.options import PATH, complete_runs, store_option
from audit.terminal.tables import cell
from audit.text.documents import mistake
from audit.text.printer import echo


@click.command("attach")
@click.argument("run", shell_complete=complete_runs)
@click.argument("report", type=PATH)
@click.option("--out", type=PATH, metavar="FILE", help="The report with the evidence. Default: REPORT.audited.SUFFIX.")
@click.option("--in-place", is_flag=True, help="Change REPORT itself.")
@click.option("--statement", type=PATH, metavar="FILE", help="The statement. Default: beside the report.")
@click.option("--format", "form", type=click.Choice(tuple(REGISTRY)), help="Format of REPORT. Default: recognised.")
@click.option("--replace", is_flag=True, help="Replace existing evidence and files.")
@click.option("--failed", is_flag=True, help="Attach a run that failed.")
@click.option("--key", "key_files", type=PATH, multiple=True, help="Sign the statement; repeatable.")
@click.option("--sidecar", is_flag=True, help="Leave REPORT as it is: the statement alone binds it.")
@click.option("--model-differs", metavar="REASON", help="Why REPORT names another model than the run's target.")
@store_option
def command(
    run: str,
    report: Path,
    out: Path | None,
    in_place: bool,
    key_files: tuple[Path, ...],
    sidecar: bool,
    model_differs: str | None,
    store: str,
    **given: Any,
) -> None:
    """Attach the evidence of RUN (a ULID, a prefix of one, or latest) to REPORT.

    Writes the report with the embedded evidence and, beside it, an in-toto statement with the report's digests
    before and after. `audit verify` checks them.

    With --key the statement is signed and goes to .audit/REPORT.intoto.jsonl, and REPORT may be any file or a run of
    MLflow, mlflow:DATABASE#RUN. Further runs are added to the same statements.

    A run that failed, and a report that names another model than the run's target, are refused unless stated.
    """
    signers = tuple(map(keys.read_private, key_files))
    if sidecar and not signers:
        raise UserError("--sidecar leaves only the statement, so it must be signed; add --key")
    goal = _goal(report, out, in_place)
    order = AttachOrder(report, goal, differs=model_differs, keys=signers, alone=sidecar, **given)
    with Store.open(store, create=False) as opened:
        done = _attach(opened, run, order)
        made = done.statement
        faults = faults_of(opened.load_run(made.predicate["run"]).arms)
    echo(f"report     {done.report}  sha256:{made.after}")
    echo(f"statement  {done.place}")
    echo(f"run        {made.predicate['run']}  sha256:{made.record_root}")
    echo(*evidence_lines(made.predicate))
    echo(*(f"arm        {cell(marked_name(arm, fault))}" for arm, fault in faults.items()))


def _attach(store: Store, run: str, order: AttachOrder) -> Attached:
    target = mlflow_run.parse(str(order.report))
    if target is None:
        return attach(store, run, order, datetime.now(UTC))
    from audit.attach.mlflow_run import attach_mlflow

    return attach_mlflow(store, run, target, order, datetime.now(UTC))


def _goal(report: Path, out: Path | None, in_place: bool) -> Path:
    if in_place and out is not None:
        raise UserError("--out and --in-place exclude each other; give one of them")
    if not report.name:
        raise UserError(f"REPORT {report}: a folder is no report; name a file")
    if in_place:
        return report
    if out is not None and out.resolve() == report.resolve():
        raise mistake(str(out), None, "--out is the report itself; use --in-place to change it")
    return out or report.with_name(f"{report.stem}.audited{report.suffix or '.json'}")
