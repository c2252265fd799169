"""Reads the facts of a decision: hashes and log checked, verdicts computed from the record.

The verdicts are computed at every decision and kept nowhere: whoever can write to the store could write a cache too.
A stored fault of a check that this version lacks still counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from audit.attest.statement import REVIEW, WAIVER
from audit.attest.waivers import stated
from audit.checks import load
from audit.errors import CannotDecide, UserError
from audit.evidence.verdicts import Verdict
from audit.gate.facts import UNSIGNED, CheckParameters, RunFacts, SignedEnding
from audit.gate.workload import ArmWorkload, workload_of
from audit.runs.recorded_arms import RecordedArms, recorded_arms
from audit.runs.rejudge import Recomputed, recomputed
from audit.store import NewCheck, RunStatus, Store, StoredCheck, StoredCoverage, StoredRun
from audit.store.base.ulid import time_of

TRUSTED = "--trust-verdicts: the stored verdicts decide, nobody computed them from the record"


def read_facts(
    store: Store,
    run: str,
    *,
    trust_verdicts: bool,
    broken: tuple[str, ...],
    ending: SignedEnding = UNSIGNED,
    announce: Callable[[str], None],
) -> RunFacts:
    """The facts for a decision on a run.

    Args:
        store: the store.
        run: the run's ULID.
        trust_verdicts: take the stored verdicts instead of computing them.
        broken: damaged places of the run's record and log; a damaged record is not read.
        ending: what a signature says about the run's end.
        announce: is called with each arm that is judged.
    """
    rows = store.attestations.of_run(run, (WAIVER, REVIEW))
    facts = _read(store, run, trust_verdicts=trust_verdicts, broken=broken, ending=ending, announce=announce)
    return replace(facts, stated=stated(rows))


def _read(
    store: Store,
    run: str,
    *,
    trust_verdicts: bool,
    broken: tuple[str, ...],
    ending: SignedEnding,
    announce: Callable[[str], None],
) -> RunFacts:
    """The facts without what people signed."""
    stored, begun = store.load_run(run), _begun(run)
    if broken or stored.status is not RunStatus.FINISHED or trust_verdicts:
        return _of_stored(store, stored, broken, ending, trusted=trust_verdicts)
    try:
        done = recomputed(store, run, announce)
        workloads = _workloads(store, stored)
    except (CannotDecide, UserError) as error:
        return RunFacts(stored, store.checks(run), (str(error),), begun=begun, ending=ending)
    checks = (*map(_as_stored, done.results), *_unknown_faults(store.checks(run), done.results))
    return RunFacts(
        stored,
        checks,
        broken,
        certified_coverage(checks, _coverage(done.results)),
        workloads,
        parameters_of(done.arms),
        begun,
        ending,
        _remarks(done),
    )


def _of_stored(
    store: Store, run: StoredRun, broken: tuple[str, ...], ending: SignedEnding, *, trusted: bool
) -> RunFacts:
    """The facts as the store states them: of a damaged or unfinished run, or if the caller trusts them."""
    checks, coverage = store.checks(run.ulid), store.coverage(run.ulid)
    whole = not broken and run.status is RunStatus.FINISHED
    arms = recorded_arms(run, checks, counted=bool(coverage))
    return RunFacts(
        run,
        checks,
        broken,
        certified_coverage(checks, coverage),
        _workloads(store, run) if whole else {},
        parameters_of(arms),
        _begun(run.ulid),
        ending,
        (TRUSTED,) if trusted else (),
    )


def _begun(run: str) -> datetime | None:
    milliseconds = time_of(run)
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def _workloads(store: Store, run: StoredRun) -> dict[str, ArmWorkload]:
    return {arm.name: workload_of(store.load_arm(run.ulid, arm.name)) for arm in run.candidates}


def parameters_of(arms: RecordedArms) -> dict[str, dict[str, CheckParameters]]:
    """The parameters with which each candidate arm's checks judged."""
    return {
        arm: {name: CheckParameters(given, load(name).defaults) for name, given in judged.checks.items()}
        for arm, judged in arms.checks.items()
    }


def _as_stored(check: NewCheck) -> StoredCheck:
    result = check.result
    numbers = (result.statistic, result.p_value, result.effect, result.bound, result.margin)
    return StoredCheck(
        check.arm,
        check.name,
        check.claim,
        check.level,
        result.verdict,
        result.n,
        *numbers,
        result.summary,
        result.findings,
        result.details,
        datetime.now(UTC),
    )


def _unknown_faults(stored: Iterable[StoredCheck], made: Iterable[NewCheck]) -> Iterable[StoredCheck]:
    """Stored faults that this version cannot compute: leaving them out would be the easier decision."""
    known = {(check.arm, check.name) for check in made}
    return (check for check in stored if check.verdict is Verdict.FAULT and (check.arm, check.check) not in known)


def _coverage(made: Iterable[NewCheck]) -> Iterable[StoredCoverage]:
    for check in made:
        for count in check.coverage:
            yield StoredCoverage(check.arm, check.name, count.situation, count.occurred, count.examined, count.least)


def _remarks(done: Recomputed) -> tuple[str, ...]:
    """Remarks on stored verdicts that the record does not give."""
    differing = [difference for difference in done.differences if difference.verdict]
    lines = [f"arm {item.arm}: {item.check}: the stored result differs: {item.changes[0]}" for item in differing]
    return (*lines, *done.arms.unknown)


def certified_coverage(
    checks: Iterable[StoredCheck], coverage: Iterable[StoredCoverage]
) -> Mapping[str, Mapping[str, int]]:
    """By arm and situation, the fewest examinations by any certified check whose claim covers the situation.

    The fewest, because a fault that one check alone can see stays unseen where that check did not look.
    """
    certified = {(check.arm, check.check) for check in checks if check.verdict is Verdict.CERTIFIED}
    least: dict[str, dict[str, int]] = {}
    for row in coverage:
        if (row.arm, row.check) in certified:
            counts = least.setdefault(row.arm, {})
            counts[row.situation] = min(row.examined, counts.get(row.situation, row.examined))
    return least
