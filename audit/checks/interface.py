"""What a check is, and what it returns.

A check is a pure function of evidence: same evidence and parameters, same
result. It never loads a model and never reads a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from audit.evidence.records import ArmKind, Evidence, Level
from audit.stats.sample_size import SampleSize
from engine.core.types import RecordLevel


class Verdict(StrEnum):
    """Three verdicts, and the absence of one."""

    CERTIFIED = "certified"
    """An upper bound is within the margin, on this workload."""
    FAULT = "fault"
    """A lower bound exceeds the margin, or a zero-tolerance hit."""
    INCONCLUSIVE = "inconclusive"
    """The evidence can show neither; not a pass."""
    NOT_RUN = "not_run"
    """The evidence that the check needs is missing, or it does not apply; the reason is in the summary."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One concrete place where the claim broke. `step` counts from 0 within the request."""

    request: str
    step: int
    message: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found on one arm.

    `statistic`, `effect` and `bound` are in the units that the check's page
    names; None where it has none. `n` counts its sampling units.
    """

    verdict: Verdict
    summary: str
    n: int = 0
    statistic: float | None = None
    p_value: float | None = None
    effect: float | None = None
    bound: float | None = None
    margin: float | None = None
    detectable: float | None = None
    """The smallest effect that this much evidence would have shown with probability 0.9, in the effect's unit."""
    findings: tuple[Finding, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """JSON-able numbers behind the summary."""


Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlanAssumptions:
    """What a plan takes for granted of one arm and check; None leaves the check's own default."""

    spread: float | None = None
    """Standard deviation of the estimate behind the bound, per unit, in the margin's unit."""


NOTHING_ASSUMED = PlanAssumptions()


@dataclass(frozen=True, slots=True)
class Design:
    """What is known of an arm before anything runs."""

    requests: int
    prompts: int
    tokens: int
    """At most; requests that end early give fewer."""
    gamma: int
    greedy: bool
    level: Level
    record: RecordLevel = RecordLevel.FULL
    assumed: PlanAssumptions = NOTHING_ASSUMED


@dataclass(frozen=True, slots=True)
class Check:
    """A named instrument.

    `defaults` are all parameters with their default values; the suite may
    override these names and no others. `applies` says why the check does not
    apply to an arm, or None. `null` is what it tests and `effect` the unit of
    its effect, bound and margin. `plan` says how much evidence the margin
    needs, before a model is loaded; None where any amount will do. Parameters
    called `alpha` and `confidence` are its error probabilities: a run that is
    looked at more than once divides them over its looks, unless the check is
    `anytime`, valid whenever one looks. `failures`: it also judges an arm of which
    no request was answered. `external`: it judges what another engine says of
    itself, which our own engine does not.
    """

    name: str
    claim: str
    needs: Level
    defaults: Params
    run: Callable[[Evidence, Params], CheckResult]
    applies: Callable[[Evidence], str | None]
    null: str
    effect: str
    plan: Callable[[Params, Design], SampleSize | None]
    companions: tuple[ArmKind, ...] = ()
    """Further arms that it compares with; they run only if a check asks for them."""
    anytime: bool = False
    failures: bool = False
    external: bool = False


def needs_nothing(params: Params, design: Design) -> None:
    """The plan of a check that any amount of evidence decides."""
    del params, design


def evaluate(check: Check, evidence: Evidence, overrides: Params) -> CheckResult:
    """Run a check with its defaults and a suite's overrides.

    Evidence below the level that the check needs gives `not_run`, never a pass.
    """
    if evidence.candidate.level < check.needs:
        have, need = evidence.candidate.level.name, check.needs.name
        return CheckResult(Verdict.NOT_RUN, f"needs evidence {need}, the arm has {have}")
    if not len(evidence.candidate.requests) and len(evidence.candidate.failed) and not check.failures:
        return CheckResult(Verdict.NOT_RUN, "no request was answered; see the liveness check")
    reason = check.applies(evidence)
    if reason is not None:
        return CheckResult(Verdict.NOT_RUN, reason)
    return check.run(evidence, {**check.defaults, **overrides})
