"""Runs the checks of a stored run and decides its exit code.

A check sees only the evidence, so a stored run can be judged again
later, elsewhere, without the models.

In a run with interim looks a check that an earlier look decided keeps its result. Each look spends its own share of the
error probabilities, so a bound that held at look k holds for the engine however the run goes on, and another look would
spend more for nothing. Such a result speaks of the evidence up to its look (`details.look`, `n`): the check has not
read what the run recorded afterwards.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MappingProxyType

from audit.checks import load
from audit.checks.base.interface import Check
from audit.checks.base.shared_reading import AskedCheck, Reader, evaluate_together, read_here
from audit.errors import UnreadableRecord
from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.count import UNCOUNTED, ArmCoverage, count, every_token
from audit.evidence.coverage.groups import Examined
from audit.evidence.coverage.rule import held_back, held_back_unaccepted, needed
from audit.evidence.coverage.scope import SCOPE, ArmScope
from audit.evidence.records import ArmRecord, Evidence, Level
from audit.evidence.verdicts import CheckResult, Verdict
from audit.runs.arms import Arm, ArmLinks, evidence_for
from audit.runs.interim_looks import InterimLook, at_interim_look
from audit.runs.reading_helpers import ReadingHelpers
from audit.store import NewCheck, SituationCount, Store, StoredCheck
from audit.suite.spec import ArmChecks
from engine.core.sequences import grouped

NEIGHBOURS = 8
"""Number of cached arms: neighbouring candidates share a baseline and its controls; more would fill the memory."""


@dataclass(frozen=True, slots=True)
class ArmJudgement:
    """One arm's results by check, its situations, and the floors that the results had to reach."""

    coverage: ArmCoverage
    floors: Mapping[str, int]
    results: Mapping[str, CheckResult]


class Judging:
    """Receives the progress of judging; a method that is not overridden does nothing."""

    def judging(self, arm: str) -> None:
        """The arm's checks begin."""

    def judged(self, arm: str, check: str, verdict: Verdict) -> None:
        """A check of the arm has its verdict."""


def judge(arms: Iterable[Arm], store: Store, run: str, progress: Judging, look: InterimLook | None = None) -> None:
    """Run every candidate's checks and store their results.

    A `look` gives its share of the error probabilities, and only the checks that no earlier look decided run.
    """
    listed = tuple(arms)
    decided = (
        {}
        if look is None
        else {(other.arm, other.check): other.verdict for other in store.checks(run) if _decided(other)}
    )
    going = {}
    for planned in listed:
        if planned.spec is not None:
            checks = {name: given for name, given in planned.spec.checks.items() if (planned.name, name) not in decided}
            going[planned.name] = ArmChecks(checks, planned.spec.coverage)
    links, load_arm = [arm.links for arm in listed], partial(store.load_arm, run)
    for check in judged_checks(links, going, load_arm, progress.judging, look, progress.judged, decided):
        store.add_check(run, check)


def judged_checks(
    arms: Sequence[ArmLinks],
    wanted: Mapping[str, ArmChecks],
    load_arm: Callable[[str], ArmRecord],
    announce: Callable[[str], None],
    look: InterimLook | None = None,
    judged: Callable[[str, str, Verdict], None] | None = None,
    decided: Mapping[tuple[str, str], Verdict] = MappingProxyType({}),
) -> Iterator[NewCheck]:
    """The results of the arms with `wanted` checks, in the order of the arms.

    `decided` has the verdicts of earlier looks, by arm and check.
    """
    record_of = lru_cache(maxsize=NEIGHBOURS)(load_arm)
    with ReadingHelpers() as helpers:
        for arm in arms:
            judging = wanted.get(arm.name)
            if judging is None or not judging.checks:
                continue
            announce(arm.name)
            try:
                evidence = evidence_for(arm, arms, record_of)
            except UnreadableRecord as error:
                yield from _undecided(arm.name, judging, str(error))
                continue
            earlier = {check: verdict for (name, check), verdict in decided.items() if name == arm.name}
            judgement = judge_arm(evidence, judging, look, judged, helpers.read, earlier)
            for name, result in judgement.results.items():
                check = load(name)
                counts = coverage_of(check, result, judgement.coverage, judgement.floors)
                yield NewCheck(arm.name, name, check.claim, evidence.candidate.level, result, counts)


def _undecided(arm: str, judging: ArmChecks, reason: str) -> Iterator[NewCheck]:
    """The results of an arm with a record that cannot be read."""
    for name in judging.checks:
        result = CheckResult(Verdict.INCONCLUSIVE, reason)
        yield NewCheck(arm, name, load(name).claim, min(Level), result, ())


def _decided(check: StoredCheck) -> bool:
    """True if more evidence leaves the result as it is."""
    return check.verdict is not Verdict.INCONCLUSIVE and not check.lacking


def judge_arm(
    evidence: Evidence,
    judging: ArmChecks,
    look: InterimLook | None = None,
    judged: Callable[[str, str, Verdict], None] | None = None,
    read: Reader = read_here,
    earlier: Mapping[str, Verdict] = MappingProxyType({}),
) -> ArmJudgement:
    """Run the checks of one arm on its evidence, and hold back what coverage does not support.

    `judged` hears of every verdict. `read` reads the arm for the checks that share a reading. `earlier` has the
    verdicts of checks that an earlier look decided.
    """
    # a check that is settled by the others comes after them
    checks = {name: load(name) for name in sorted(judging.checks, key=lambda name: load(name).settle is not None)}
    asked = {
        name: AskedCheck(check, at_interim_look(check, judging.checks[name], look)) for name, check in checks.items()
    }
    # a check whose claim is not about speculation needs no counts, and neither does an arm with such checks only
    about = {name: _examined(check, evidence) for name, check in checks.items() if check.covers}
    coverage = count(evidence.candidate, about) if about else UNCOUNTED
    floors = needed(evidence.candidate, coverage, judging.coverage)
    results: dict[str, CheckResult] = {}
    for name, given in evaluate_together(asked, evidence, read):
        covers, settle = checks[name].covers, checks[name].settle
        if settle is not None:
            given = settle(given, {**earlier, **{other: result.verdict for other, result in results.items()}})
        result = held_back(given, covers, coverage.examined.get(name, {}), floors)
        result = _with_look(held_back_unaccepted(result, covers, coverage), look)
        results[name] = _with_scope(result, coverage.scope) if covers else result
        if judged is not None:
            judged(evidence.candidate.name, name, results[name].verdict)
    return ArmJudgement(coverage, floors, results)


def _examined(check: Check, evidence: Evidence) -> Examined:
    """The tokens that count as examined: a test of the workload leaves directed requests to the arm's exact checks."""
    examined = check.examines(check.seen(evidence))
    if not (check.statistical and evidence.candidate.directed):
        return examined
    return lambda request: every_token(request) if request.directed else examined(request)


def coverage_of(
    check: Check, result: CheckResult, coverage: ArmCoverage, floors: Mapping[str, int]
) -> tuple[SituationCount, ...]:
    """The situations of the check's claim, to be stored with its result; none for a check that did not run."""
    if result.verdict is Verdict.NOT_RUN or not check.covers:
        return ()
    examined = coverage.examined[check.name]
    return tuple(
        SituationCount(name, occurred, examined[name], floors.get(name))
        for name, occurred in coverage.occurred.items()
        if CATALOGUE[name].group in check.covers
    )


def _with_look(result: CheckResult, look: InterimLook | None) -> CheckResult:
    if look is None:
        return result
    return dataclasses.replace(result, details={**result.details, "look": {"number": look.number, "share": look.share}})


def _with_scope(result: CheckResult, scope: ArmScope) -> CheckResult:
    """The result with the batches, drafts, numerics and device that it speaks of."""
    if result.verdict is Verdict.NOT_RUN:
        return result
    return dataclasses.replace(result, details={**result.details, SCOPE: scope.to_json()})


def exit_code(checks: Iterable[StoredCheck]) -> int:
    """1 if an arm has a fault, 0 if every arm is certified and decided (see `arm_exit_code`), else 3."""
    codes = {arm_exit_code(results) for results in grouped((check.arm, check) for check in checks).values()}
    return 1 if 1 in codes else 0 if codes == {0} else 3


def arm_exit_code(results: Iterable[StoredCheck | CheckResult]) -> int:
    """0 if every check is certified that has a claim about the arm, 1 with a fault, else 3.

    A check whose claim does not exist for the arm (`not_run`) decides nothing. A check that is `not_run` for want of
    evidence leaves the arm undecided, and so does an arm without a single certified check.
    """
    listed = tuple(results)
    verdicts = {result.verdict for result in listed}
    if Verdict.FAULT in verdicts:
        return 1
    undecided = Verdict.INCONCLUSIVE in verdicts or any(result.lacking for result in listed)
    return 0 if Verdict.CERTIFIED in verdicts and not undecided else 3
