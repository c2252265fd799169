"""Check that a report is unchanged since a run's evidence was bound to it.

The result names every mismatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from audit.attach import REGISTRY
from audit.attach.bind import evidence_of, load_format
from audit.attach.statement import Statement, digest
from audit.errors import UserError
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


def verify(report: bytes, statement: Statement, store: str) -> Verification:
    """Compare a report with its statement, and both with the store at a URL."""
    offline = tuple(_report_mismatches(report, statement))
    try:
        with Store.open(store, create=False, read_only=True) as opened:
            run = opened.resolve(str(statement.predicate["run"]))
            return Verification((*offline, *_store_mismatches(opened, run, statement)))
    except UserError as error:
        return Verification(offline, str(error))


def _report_mismatches(report: bytes, statement: Statement) -> Iterator[str]:
    after = digest(report)
    if after != statement.after:
        yield f"the report is sha256:{after}, the statement binds sha256:{statement.after}"
    if statement.record_root != statement.predicate["record_root"]:
        yield "the statement's record root is not its predicate's"
    if statement.before != statement.predicate["report"]["sha256"]:
        yield "the statement's digest of the report before is not its predicate's"
    name = str(statement.predicate["report"]["format"])
    if name not in REGISTRY:
        yield f"the statement's report format {name} is unknown to this version"
        return
    form = load_format(name)
    try:
        if form.extract(report) != statement.predicate:
            yield "the evidence in the report is not the statement's"
        elif digest(form.remove(report)) != statement.before:
            yield "the report without its evidence is not the one that the evidence was attached to"
    except ValueError as error:
        yield f"the report is no {name} report any more: {error}"


def _store_mismatches(store: Store, run: str, statement: Statement) -> Iterator[str]:
    predicate = statement.predicate
    now = evidence_of(store.load_run(run), store.checks(run), int(predicate["version"]))
    changed = [key for key, value in now.items() if predicate.get(key) != value]
    if changed:
        yield f"the store's {', '.join(changed)} of run {run} differ from the statement's"
    if not store.verify_root(run):
        yield f"the record of run {run} in the store is not what it was when the run finished"
    if statement.to_json() not in [attachment.statement for attachment in store.attachments(run)]:
        yield f"the store has no such attachment of run {run}"
