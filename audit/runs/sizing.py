"""What a suite's checks need, what the suite gives them, and how long that takes; before any model is loaded.

Counts and spreads are measured ones where a finished run of the same suite has
the same arm, else stated defaults; `PlannedCheck.basis` and `RunPlan.rate_from`
say which. A plan is an expectation: requests that end early give less, and a
spread measured once is an estimate. Knows nothing about how a check computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.checks import load
from audit.checks.interface import Check, Design, PlanAssumptions, foreseen
from audit.errors import UserError
from audit.evidence.records import ArmKind, Level
from audit.runs.arms import ANCHOR_REQUESTS, Arm, plan_arms, slots
from audit.stats.power import MOST, replay_effect
from audit.stats.sample_size import SampleSize
from audit.store import RunStatus, Store, StoredArm, StoredCheck, StoredRun
from audit.suite.spec import Suite, sources
from engine.backends import declared
from engine.backends.evidence import ArmEvidence, ArmSettings
from engine.core.errors import InvalidRequest

FORMAT: Final = 1
RATE: Final = 100.0
"""Tokens per second of a whole run where no run tells: the bundled pair on a busy core, checks included."""
LOOKED_AT: Final = 50
"""How many of the newest runs are searched."""
PER_TOKEN: Final[Mapping[str, float]] = {
    "tokens": 1.0,
    "compared tokens": 1.0,
    "decisions": 1.0,
    "random numbers": 1.0,
    "compared positions": 0.5,
    "positions": 0.3,
    "drafted tokens": 0.3,
}
"""Units that an emitted token is taken to give where no run tells. Low ones: positions are 0.3 (ngram) to 0.9 (draft
model) of a token with the bundled pair, compared ones 0.56 to 1."""
PROMPTS: Final = "prompts"


@dataclass(frozen=True, slots=True)
class PlannedCheck:
    """One check of one arm. `outcome` is `enough`, `too_little` or `not_run`."""

    arm: str
    check: str
    claim: str
    outcome: str
    need: SampleSize | None
    """None where any amount decides."""
    given: int | None
    """Units that the suite is expected to give."""
    detectable: float | None
    """Of a check without tolerance: the rate of violations that so much shows with probability 0.9."""
    factor: float | None
    """How many times as much evidence would be enough; None if it is, or if no amount will do."""
    spread: float | None
    """The measured spread that the need rests on; None for the check's own assumption."""
    basis: str
    """`run ULID`, or `defaults`."""
    mend: str
    """What to change; empty if it is enough."""


@dataclass(frozen=True, slots=True)
class ArmLoad:
    """What one arm is expected to emit."""

    arm: str
    kind: ArmKind
    requests: int
    tokens: int
    most: int
    """If no request ends early."""
    seconds: float


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


@dataclass(frozen=True, slots=True)
class RunHistory:
    """What stored runs tell: the last of the same suite with its checks, and one on this machine."""

    same: StoredRun | None = None
    checks: tuple[StoredCheck, ...] = ()
    here: StoredRun | None = None

    def arm(self, planned: Arm) -> StoredArm | None:
        """The arm of that name, if it decoded in the same way and has finished requests."""
        found = self.same.arm(planned.name) if self.same else None
        if found is None or not found.counts.requests or not found.counts.output:
            return None
        now = {"verifier": planned.plan.protocol.value, "proposer": planned.plan.proposer, "gamma": planned.plan.gamma}
        return found if all(found.spec.get(key) == value for key, value in now.items()) else None

    def check(self, arm: str, check: str) -> StoredCheck | None:
        """A check's last result there."""
        return next((each for each in self.checks if (each.arm, each.check) == (arm, check)), None)


def history(store: Store, suite: str, hardware: Mapping[str, Any]) -> RunHistory:
    """Search the newest runs; interrupted ones are left out, for their duration says nothing."""
    names = [run.ulid for run in store.list_runs(LOOKED_AT) if run.status is RunStatus.FINISHED and run.tokens]
    runs = [run for run in map(store.load_run, names) if not any(_stopped(event.status) for event in run.events)]
    same = next((run for run in runs if run.suite_name == suite), None)
    here = next((run for run in runs if _machine(run.environment.hardware) == _machine(hardware)), None)
    return RunHistory(same, store.checks(same.ulid) if same else (), here)


def _stopped(status: RunStatus) -> bool:
    return status in (RunStatus.INTERRUPTED, RunStatus.FAILED)


def _machine(hardware: Mapping[str, Any]) -> tuple[str, str]:
    return str(hardware.get("cpu")), str(hardware.get("gpus"))


def plan(suite: Suite, told: RunHistory) -> RunPlan:
    """Plan a suite with what stored runs tell."""
    rate, rate_from = _rate(told.here)
    arms = plan_arms(suite)
    loads = tuple(_load(suite, arm, told, rate) for arm in arms)
    tokens = {each.arm: each.tokens for each in loads}
    checks = tuple(_checks(suite, arms, tokens, told))
    total = sum(tokens.values())
    return RunPlan(FORMAT, suite.name, suite.sha256, loads, checks, total, total / rate, rate, rate_from, _code(checks))


def _rate(here: StoredRun | None) -> tuple[float, str]:
    if here is None or here.finished_at is None or not here.tokens:
        return RATE, "the default, for no finished run on this machine is in the store"
    seconds = (here.finished_at - here.started_at).total_seconds()
    if seconds <= 0.0:
        return RATE, f"the default, for run {here.ulid} took no measurable time"
    return here.tokens / seconds, f"run {here.ulid} of {here.suite_name} on this machine"


def _load(suite: Suite, arm: Arm, told: RunHistory, rate: float) -> ArmLoad:
    requests = len(slots(suite, arm))
    before = told.arm(arm)
    most = requests * arm.sampling.max_new_tokens
    tokens = most if before is None else min(most, round(requests * before.counts.output / before.counts.requests))
    return ArmLoad(arm.name, arm.kind, requests, tokens, most, tokens / rate)


def _checks(suite: Suite, arms: Sequence[Arm], tokens: Mapping[str, int], told: RunHistory) -> Iterable[PlannedCheck]:
    for arm in arms:
        for name, overrides in arm.spec.checks.items() if arm.spec else ():
            check = load(name)
            yield _check(suite, arm, check, {**check.defaults, **overrides}, tokens[arm.name], told)


def _check(
    suite: Suite, arm: Arm, check: Check, params: Mapping[str, Any], tokens: int, told: RunHistory
) -> PlannedCheck:
    before, arm_before = told.check(arm.name, check.name), told.arm(arm)
    measured = before if arm_before is not None and before is not None and before.n else None
    spread = _spread(measured)
    design = _design(suite, arm, tokens, PlanAssumptions(spread))
    need = check.plan(params, design)
    basis = f"run {told.same.ulid}" if measured is not None and told.same is not None else "defaults"
    given = None if need is None else _given(check, need.unit, design, measured, arm_before)
    outcome, mend = _outcome(design, need, given, foreseen(check, params, design))
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
    )


def _spread(measured: StoredCheck | None) -> float | None:
    error = measured.details.get("standard_error") if measured is not None else None
    return None if error is None or measured is None or error <= 0 else float(error) * math.sqrt(measured.n)


def _design(suite: Suite, arm: Arm, tokens: int, assumed: PlanAssumptions) -> Design:
    shown = _shown(suite, arm)
    return Design(
        requests=len(slots(suite, arm)),
        prompts=len(suite.cases),
        tokens=tokens,
        gamma=arm.plan.gamma,
        greedy=arm.sampling.greedy,
        level=Level(shown.level),
        record=arm.plan.level,
        shown=shown,
        assumed=assumed,
    )


def _shown(suite: Suite, arm: Arm) -> ArmEvidence:
    """What the suite's backend declares of the arm.

    Raises:
        UserError: settings that the backend does not take.
    """
    settings = ArmSettings(arm.plan, arm.sampling.greedy, sources(suite)["target"])
    try:
        return declared(suite.backend).arm(settings)
    except InvalidRequest as error:
        raise UserError(f"{suite.path}: {error}") from error


def _given(check: Check, unit: str, design: Design, measured: StoredCheck | None, arm: StoredArm | None) -> int:
    if unit == PROMPTS:
        return min(design.prompts, ANCHOR_REQUESTS) if ArmKind.ANCHOR in check.companions else design.prompts
    ratio = PER_TOKEN[unit] if measured is None or arm is None else measured.n / arm.counts.output
    return int(design.tokens * ratio)


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
    """0 if every check that runs can decide and every arm has one, else 3: an arm of which nothing runs is no pass."""
    decided = {each.arm for each in checks if each.outcome == "enough"}
    short = any(each.outcome == "too_little" for each in checks)
    return 3 if short or {each.arm for each in checks} - decided else 0
