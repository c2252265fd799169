"""Check that a report is unchanged since a run's evidence was bound to it.

The result names every mismatch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from audit.attach import REGISTRY
from audit.attach.bind import evidence_of
from audit.attach.interface import ReportFormat, load_format, pointer
from audit.attach.statement import Statement, digest
from audit.errors import UserError
from audit.evidence.verdicts import Verdict
from audit.report.tables.verdicts import conclusion
from audit.store import Store


@dataclass(frozen=True, slots=True)
class Verification:
    """All mismatches, and the reason why the store is not available, if any."""

    mismatches: tuple[str, ...]
    unknown: str | None = None

    @property
    def exit_code(self) -> int:
        """0 verified, 1 mismatch, 3 the store cannot confirm."""
        if self.mismatches:
            return 1
        return 3 if self.unknown else 0


def verify(report: bytes, statement: Statement, store: str | None) -> Verification:
    """Compare a report with its statement, and both with the store at a URL, if there is one."""
    return _with_store(tuple(_report_mismatches(report, statement)), statement, store)


def _with_store(offline: tuple[str, ...], statement: Statement, store: str | None) -> Verification:
    if store is None:
        return Verification(offline)
    try:
        with Store.open(store, create=False, read_only=True) as opened:
            run = opened.resolve(str(statement.predicate["run"]))
            return Verification((*offline, *_store_mismatches(opened, run, statement)))
    except UserError as error:
        return Verification(offline, str(error))


def verify_digest(after: str, statement: Statement, store: str | None) -> Verification:
    """As `verify`, of a report that carries nothing and has this digest."""
    return _with_store(tuple(_digest_mismatches(after, statement)), statement, store)


def _report_mismatches(report: bytes, statement: Statement) -> Iterator[str]:
    yield from _digest_mismatches(digest(report), statement)
    name = str(statement.predicate["report"]["format"])
    if name not in REGISTRY:
        yield f"the statement's report format {name} is unknown to this version"
        return
    if statement.after != statement.before:
        yield from _carried_mismatches(load_format(name), report, statement)


def _digest_mismatches(after: str, statement: Statement) -> Iterator[str]:
    if after != statement.after:
        yield f"the report is sha256:{after}, the statement binds sha256:{statement.after}"
    if statement.record_root != statement.predicate["record_root"]:
        yield "the statement's record root is not its predicate's"
    if statement.before != statement.predicate["report"]["sha256"]:
        yield "the statement's digest of the report before is not its predicate's"
    # the second and third subject have the names that follow from the first and the run
    expected = (f"{statement.report}#before", f"run:{statement.predicate['run']}")
    for wanted, name in zip(expected, statement.names, strict=True):
        if wanted != name:
            yield f"the statement's subject {name} should be {wanted}"


def _carried_mismatches(form: ReportFormat, report: bytes, statement: Statement) -> Iterator[str]:
    """Compares the report's evidence; only a statement beside it binds an unchanged report."""
    expected = statement.predicate if form.whole else pointer(statement.predicate)
    try:
        if form.extract(report) != expected:
            yield "the evidence in the report is not the statement's"
            return
        bare = form.remove(report)
        if bare is not None and digest(bare) != statement.before:
            yield "the report without its evidence is not the one that the evidence was attached to"
    except ValueError as error:
        yield f"the report is no {form.name} report any more: {error}"


def _store_mismatches(store: Store, run: str, statement: Statement) -> Iterator[str]:
    predicate = statement.predicate
    now = evidence_of(store.load_run(run), store.checks(run))
    changed = [key for key, value in now.items() if predicate.get(key) != value]
    if changed:
        yield f"the store's {', '.join(changed)} of run {run} differ from the statement's"
    if not store.verify_root(run):
        yield f"the record of run {run} in the store is not what it was when the run finished"
    if statement.to_json() not in [attachment.statement for attachment in store.attachments(run)]:
        yield f"the store has no such attachment of run {run}"


WIDTH: Final = 10


def evidence_lines(predicate: Mapping[str, Any]) -> list[str]:
    """The run's conclusion, verdicts by claim, faults, and what the report is about."""
    lines = [("verdict", conclusion(predicate["exit_code"]))]
    for claim, counts in predicate["claims"].items():
        lines.append(("claim", f"{claim}: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}"))
    lines += [
        (item["verdict"], f"{item['check']} of arm {item['arm']}")
        for item in predicate["checks"]
        if item["verdict"] in (Verdict.FAULT, Verdict.INCONCLUSIVE)
    ]
    lines += [("lossy", f"arm {name}, by declaration") for name in predicate.get("lossy", ())]
    lines += [("model", _model(predicate)), ("answers", _answers(predicate))]
    return [f"{name.ljust(WIDTH)} {words}" for name, words in lines]


def _model(predicate: Mapping[str, Any]) -> str:
    result = predicate["model"]
    names, own = (", ".join(result[side]) or "no model" for side in ("report", "run"))
    if result["agree"] is None:
        return f"the report names no model; the run's is {own}"
    if result["agree"]:
        return f"the report names {names}, the run's is {own}"
    return f"DIFFERS: the report names {names}, the run's is {own}; stated reason: {result['differs']}"


def _answers(predicate: Mapping[str, Any]) -> str:
    if predicate.get("generated_by_run"):
        return "the report is this run's own document"
    return "not known to be generated by this run"
