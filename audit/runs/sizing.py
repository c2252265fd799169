"""Plans a suite before any model is loaded: the evidence that checks need, the evidence they get, and the time.

Counts and spreads come from a finished run of the same suite with the same arm, else from stated defaults;
`PlannedCheck.basis` and `RunPlan.rate_from` name the source. A plan is an expectation: requests that end early give
less evidence, and a spread measured once is an estimate.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from audit.checks import load
from audit.checks.base.interface import Check, Design, PlanAssumptions, foreseen
from audit.errors import UserError
from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.records import ArmKind, Level
from audit.evidence.verdicts import CheckResult, NoEvidence, Verdict
from audit.runs.arms import ANCHOR_REQUESTS, REDRAFT_REQUESTS, Arm, plan_arms, slots, turns_of
from audit.stats.power import MOST, replay_effect
from audit.stats.sample_size import SampleSize
from audit.store import RunStatus, Store, StoredArm, StoredCheck, StoredCoverage, StoredRun
from audit.suite.spec import Suite
from engine.backends import declared
from engine.backends.evidence import ArmEvidence, ArmSettings
from engine.core.errors import InvalidRequest

FORMAT: Final = 1
RATE: Final = 100.0
"""Default tokens per second of a whole run: the bundled pair on a busy core, checks included."""
LOOKED_AT: Final = 50
STOPPED: Final = frozenset((RunStatus.INTERRUPTED, RunStatus.FAILED))
"""Number of newest runs to search."""
PER_TOKEN: Final[Mapping[str, float]] = {
    "tokens": 1.0,
    "compared tokens": 1.0,
    "decisions": 1.0,
    "decisions of filters": 0.005,
    "random numbers": 1.0,
    "positions read again": 1.0,
    "positions": 0.3,
    "drafted tokens": 0.3,
    "steps": 0.3,
}
"""Default units per emitted token, on the low side: positions are 0.3 (ngram) to 0.9 (draft
model) of a token with the bundled pair."""
PROMPTS: Final = "prompts"
REQUESTS: Final = "requests"
ANSWERS: Final = "answers"
"""To requests that offer tools."""


@dataclass(frozen=True, slots=True)
class PlannedCheck:
    """One check of one arm. `outcome` is `enough`, `too_little` or `not_run`."""

    arm: str
    check: str
    claim: str
    outcome: str
    need: SampleSize | None
    """None if any amount decides."""
    given: int | None
    """Expected units from the suite."""
    detectable: float | None
    """For a check without tolerance: the violation rate that this evidence detects with probability 0.9."""
    factor: float | None
    """Factor by which the evidence must grow; None if it is enough, or if no amount would be."""
    spread: float | None
    """The measured spread behind `need`; None for the check's own assumption."""
    basis: str
    """`run ULID`, `a trial`, or `defaults`."""
    mend: str
    """Suggested change; empty if the evidence is enough."""
    lacking: bool = False
    """True if the check will be `not_run` for want of evidence, which leaves its arm undecided."""


@dataclass(frozen=True, slots=True)
class ArmLoad:
    """Expected output of one arm."""

    arm: str
    kind: ArmKind
    requests: int
    tokens: int
    most: int
    """Tokens if no request ends early."""
    directed: int
    """Tokens of directed requests beside them; 0 without an earlier run."""
    drafted: int
    seconds: float
    fault: str | None
    """How the arm is broken on purpose, if it is."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A suite's plan."""

    format: int
    suite: str
    suite_sha256: str
    arms: tuple[ArmLoad, ...]
    checks: tuple[PlannedCheck, ...]
    tokens: int
    seconds: float
    rate: float
    """Tokens per second of a whole run, checks included."""
    rate_from: str
    exit_code: int
    lacks: tuple[str, ...] = ()
    """Counts that a policy requires and the suite would not give, in words."""


@dataclass(frozen=True, slots=True)
class RunHistory:
    """Facts from stored runs: the last of the same suite with its checks, and one on this machine."""

    same: StoredRun | None = None
    checks: tuple[StoredCheck, ...] = ()
    here: StoredRun | None = None
    coverage: tuple[StoredCoverage, ...] = ()
    trial: bool = False
    """Both runs are a trial of the suite (`audit.runs.trial`), which no store keeps."""

    def named(self, run: StoredRun) -> str:
        """The name of one of these runs as a source of numbers."""
        return "a trial" if self.trial else f"run {run.ulid}"

    def arm(self, planned: Arm) -> StoredArm | None:
        """The arm of that name, if its decoding settings match and it has finished requests."""
        result = self.same.arm(planned.name) if self.same else None
        if result is None or not result.counts.requests or not result.counts.output:
            return None
        now = {"verifier": planned.plan.protocol.value, "proposer": planned.plan.proposer, "gamma": planned.plan.gamma}
        return result if all(result.spec.get(key) == value for key, value in now.items()) else None

    def check(self, arm: str, check: str) -> StoredCheck | None:
        """The last result of a check in that run."""
        return next((other for other in self.checks if (other.arm, other.check) == (arm, check)), None)


def history(store: Store, suite: str, hardware: Mapping[str, Any]) -> RunHistory:
    """Search the newest runs, without interrupted ones, whose duration is meaningless."""
    names = [run.ulid for run in store.list_runs(LOOKED_AT) if run.status is RunStatus.FINISHED and run.tokens]
    runs = [run for run in map(store.load_run, names) if not any(event.status in STOPPED for event in run.events)]
    same = next((run for run in runs if run.suite_name == suite), None)
    here = next((run for run in runs if _machine(run.environment.hardware) == _machine(hardware)), None)
    checks, coverage = (store.checks(same.ulid), store.coverage(same.ulid)) if same else ((), ())
    return RunHistory(same, checks, here, coverage)


def _machine(hardware: Mapping[str, Any]) -> tuple[str, str]:
    return str(hardware.get("cpu")), str(hardware.get("gpus"))


def plan(suite: Suite, past: RunHistory) -> RunPlan:
    """Plan a suite with the facts from stored runs."""
    rate, rate_from = _rate(past)
    arms = plan_arms(suite)
    loads = tuple(_load(suite, arm, past, rate) for arm in arms)
    checks = tuple(_checks(suite, arms, {other.arm: other.tokens for other in loads}, past))
    total = sum(load.tokens + load.directed for load in loads)
    return RunPlan(FORMAT, suite.name, suite.sha256, loads, checks, total, total / rate, rate, rate_from, _code(checks))


def _rate(past: RunHistory) -> tuple[float, str]:
    here = past.here
    if here is None or here.finished_at is None or not here.tokens:
        return RATE, "the default, because the store has no finished run on this machine"
    seconds = (here.finished_at - here.started_at).total_seconds()
    if seconds <= 0.0:
        return RATE, f"the default, because run {here.ulid} took no measurable time"
    return here.tokens / seconds, f"{past.named(here)} of {here.suite_name} on this machine"


def _load(suite: Suite, arm: Arm, past: RunHistory, rate: float) -> ArmLoad:
    requests, fault = sum(turns_of(arm, slot) for slot in slots(suite, arm)), arm.plan.fault
    most = requests * arm.sampling.max_new_tokens
    before = past.arm(arm)
    if before is None:
        drafted = round(most * PER_TOKEN["drafted tokens"]) if arm.plan.proposer else 0
        return ArmLoad(arm.name, arm.kind, requests, most, most, 0, drafted, most / rate, fault)
    # a longer run meets more situations by itself, so this is the most of them
    directed, ratio = before.counts.directed_output, requests / before.counts.requests
    tokens, drafted = min(most, round(ratio * before.counts.output)), round(ratio * (before.counts.drafted or 0))
    return ArmLoad(arm.name, arm.kind, requests, tokens, most, directed, drafted, (tokens + directed) / rate, fault)


def _checks(suite: Suite, arms: Sequence[Arm], tokens: Mapping[str, int], past: RunHistory) -> Iterable[PlannedCheck]:
    for arm in arms:
        listed = arm.spec.checks if arm.spec else {}
        planned = [_check(suite, arm, load(name), listed[name], tokens[arm.name], past) for name in listed]
        yield from (_settled(check, planned, past) for check in planned)


def _settled(planned: PlannedCheck, others: Sequence[PlannedCheck], past: RunHistory) -> PlannedCheck:
    """A check that rests on the arm's other checks: by what its trial recorded, and which of them will run."""
    check, before = load(planned.check), past.check(planned.arm, planned.check)
    if check.settle is None or before is None or not past.trial:
        return planned
    verdicts = {other.check: Verdict.NOT_RUN if other.outcome == "not_run" else Verdict.CERTIFIED for other in others}
    result = check.settle(CheckResult(before.verdict, "", details=before.details), verdicts)
    if result.verdict is Verdict.CERTIFIED:
        return planned
    return replace(planned, outcome="too_little", mend=result.summary)


def _check(
    suite: Suite, arm: Arm, check: Check, overrides: Mapping[str, Any], tokens: int, past: RunHistory
) -> PlannedCheck:
    params = {**check.defaults, **overrides}
    before, arm_before = past.check(arm.name, check.name), past.arm(arm)
    measured = before if arm_before is not None and before is not None and before.n else None
    spread = measured_spread(measured)
    scarcest = measured.details.get("scarcest") if measured else None
    design = _design(suite, arm, tokens, PlanAssumptions(spread, scarcest))
    need = check.plan(params, design)
    basis = "defaults" if measured is None or past.same is None else past.named(past.same)
    given = None if need is None else _given(check, need.unit, design, measured, arm_before)
    reason = foreseen(check, params, design)
    outcome, mend = _outcome(design, need, given, reason)
    if outcome == "enough" and arm_before is not None:
        missed = _missed(arm, check, past, design.requests / arm_before.counts.requests)
        outcome, mend = ("too_little", missed) if missed else (outcome, mend)
    return PlannedCheck(
        arm=arm.name,
        check=check.name,
        claim=check.claim,
        outcome=outcome,
        need=need,
        given=given,
        detectable=replay_effect(given) if need is not None and given is not None and need.alpha == 0.0 else None,
        factor=need.units / given if need and given and outcome == "too_little" and need.units < MOST else None,
        spread=spread,
        basis=basis,
        mend=mend,
        lacking=isinstance(reason, NoEvidence),
    )


def _missed(arm: Arm, check: Check, past: RunHistory, ratio: float) -> str:
    """The situations that the check would examine too rarely, by the run before; empty if none."""
    assert arm.spec is not None
    floors = arm.spec.coverage
    rows = [item for item in past.coverage if (item.arm, item.check) == (arm.name, check.name)]
    expected = {row.situation: round(row.examined * ratio) for row in rows if row.least is not None}
    short = {name: n for name, n in expected.items() if n < floors.floor(name)}
    counts = ", ".join(f"{name} about {n} of {floors.floor(name)}" for name, n in short.items())
    remedies = "; ".join(dict.fromkeys(CATALOGUE[name].remedy for name in short if name in CATALOGUE))
    return f"{counts}: {remedies}" if short else ""


def measured_spread(measured: StoredCheck | None) -> float | None:
    """The spread per unit behind a stored bound; None where the check recorded no standard error."""
    error = measured.details.get("standard_error") if measured is not None else None
    return None if error is None or measured is None or error <= 0 else float(error) * math.sqrt(measured.n)


def _design(suite: Suite, arm: Arm, tokens: int, assumed: PlanAssumptions) -> Design:
    shown = _shown(suite, arm)
    return Design(
        requests=sum(turns_of(arm, slot) for slot in slots(suite, arm)),
        prompts=len(suite.cases),
        tokens=tokens,
        gamma=arm.plan.gamma,
        greedy=arm.sampling.greedy,
        level=Level(shown.level),
        record=arm.plan.level,
        shown=shown,
        structured=arm.sampling.structured is not None,
        assumed=assumed,
        offers=sum(turns_of(arm, slot) for slot in slots(suite, arm) if slot.case.tools),
        stream=arm.plan.stream,
    )


def _shown(suite: Suite, arm: Arm) -> ArmEvidence:
    """The evidence that the suite's backend declares for the arm.

    Raises:
        UserError: the backend rejects the settings.
    """
    settings = ArmSettings(arm.plan, arm.sampling, suite.models["target"])
    try:
        return declared(suite.backend).arm(settings)
    except InvalidRequest as error:
        raise UserError(f"{suite.path}: {error}") from error


def _given(check: Check, unit: str, design: Design, measured: StoredCheck | None, arm: StoredArm | None) -> int:
    if unit == PROMPTS:
        return min(design.prompts, ANCHOR_REQUESTS) if ArmKind.ANCHOR in check.companions else design.prompts
    if unit == ANSWERS:
        return design.offers
    if unit == REQUESTS:
        return design.requests
    # exact checks judged directed requests too
    more = 0 if arm is None or check.statistical else arm.counts.directed_output
    ratio = PER_TOKEN[unit] if measured is None or arm is None else measured.n / (arm.counts.output + more)
    tokens = design.tokens
    if ArmKind.REDRAFT in check.companions and measured is None:
        tokens = tokens * min(design.requests, REDRAFT_REQUESTS) // max(design.requests, 1)
    return int(tokens * ratio)


def _outcome(design: Design, need: SampleSize | None, given: int | None, reason: str | None) -> tuple[str, str]:
    if reason is not None:
        return "not_run", reason
    if need is None or given is None or given >= need.units:
        return "enough", ""
    if need.units >= MOST:
        return "too_little", f"record {design.record} never decides it; write record: full"
    times = need.units / max(given, 1)
    what = "prompts" if design.greedy or need.unit == PROMPTS else "samples"
    return "too_little", f"{times:.2g} times the {what}, or a wider margin"


def _code(checks: Sequence[PlannedCheck]) -> int:
    """0 if every check with a claim can decide and every arm has one, else 3."""
    decided = {check.arm for check in checks if check.outcome == "enough"}
    short = any(check.outcome == "too_little" or check.lacking for check in checks)
    return 3 if short or {check.arm for check in checks} - decided else 0
