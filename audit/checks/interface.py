"""What a check is, and how it is run.

A check is a pure function of evidence: same evidence and parameters, same
result. It never loads a model and never reads a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from audit.evidence.records import ArmKind, Evidence, Level
from audit.evidence.verdicts import CheckResult, Verdict
from audit.stats.sample_size import SampleSize
from engine.backends.evidence import ArmEvidence, Part
from engine.core.types import Protocol, RecordLevel
from engine.record.effective import Decoder

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlanAssumptions:
    """What a plan takes for granted of one arm and check; None leaves the check's own default."""

    spread: float | None = None
    """Standard deviation of the estimate behind the bound, per unit, in the margin's unit."""


NOTHING_ASSUMED = PlanAssumptions()
NO_KEY = "another engine drew the random numbers: no key gives them; law, honoured and q_contract judge without"
"""Why numbers that were drawn cannot be drawn again."""
EVERYTHING = ArmEvidence(Decoder.OWN, 4, frozenset(Part), Protocol.CHAIN, drawn=True, promises="everywhere")
"""A sampled arm of our own engine that leaves nothing out."""


@dataclass(frozen=True, slots=True)
class Design:
    """What is known of an arm before anything runs. `shown` is what its backend declares."""

    requests: int
    prompts: int
    tokens: int
    """At most; requests that end early give fewer."""
    gamma: int
    greedy: bool
    level: Level
    record: RecordLevel = RecordLevel.FULL
    shown: ArmEvidence = EVERYTHING
    assumed: PlanAssumptions = NOTHING_ASSUMED

    @property
    def keyed(self) -> bool:
        """Whether every random number of the arm comes from a key, or none is drawn."""
        return self.greedy or self.shown.decoder is Decoder.OWN


def always_applies(params: Params, design: Design) -> None:
    """The foresight of a check that applies to every arm that has requests."""
    del params, design


@dataclass(frozen=True, slots=True)
class Check:
    """A named instrument.

    `defaults` are all parameters with their default values; the suite may
    override these names and no others. `applies` says why the check does not
    apply to an arm, or None; `foresee` says the same before the arm has run, as far
    as the suite and the declared evidence of the backend tell. `null` is what it tests and `effect` the unit of
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
    foresee: Callable[[Params, Design], str | None] = always_applies


def needs_nothing(params: Params, design: Design) -> None:
    """The plan of a check that any amount of evidence decides."""
    del params, design


def foreseen(check: Check, params: Params, design: Design) -> str | None:
    """Why a check will end `not_run`, or None: the counterpart of `evaluate` for what has not run yet."""
    if design.level < check.needs:
        return f"needs evidence {check.needs.name}, record {design.record} gives {design.level.name}"
    return check.foresee(params, design)


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
