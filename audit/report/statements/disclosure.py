"""A provider's statement on a run's speculation, from the stored evidence alone.

Every number comes from the store, and a claim is repeated with its verdict: nothing is concluded here. What was not
examined is part of the statement.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from audit.evidence.verdicts import Verdict
from audit.report.tables.coverage import GENERAL
from audit.report.tables.results import Results, results
from audit.store import ArtifactRef, Store, StoredArm, StoredCheck, StoredCoverage, StoredDecision
from audit.store.base.governance import Governance, governance
from audit.store.writing.erasure import StoredErasure

FORMAT: Final = 1
WAIVED: Final = "allow: "
"""Beginning of a recorded reason that let a requirement pass."""
LISTED: Final = ("waivers: ", "reviews: ")
"""Beginnings of remarks that only list a review, or a waiver that did not count."""


class Aspect(StrEnum):
    """Effects that an optimisation may have for a user."""

    DETERMINISM = "determinism"
    DISTRIBUTION = "output distribution"
    LOGPROBS = "log-probabilities"
    REPRODUCIBILITY = "reproducibility"
    OBSERVABILITY = "observability"
    CONTENT = "structured outputs, tool calls and filters"
    SPEED = "acceptance and speed"


ASPECTS: Final[Mapping[Aspect, tuple[str, ...]]] = {
    Aspect.DETERMINISM: ("greedy_equality", "coupled_equality", "same_seed", "gamma_invariance", "long_context"),
    Aspect.DISTRIBUTION: (
        *("law", "token_law", "two_sample", "q_contract", "prefix_measurable", "honoured", "honoured_by_tokens"),
    ),
    Aspect.LOGPROBS: ("anchor", "bitwise", "logprob_closeness", "row_closeness"),
    Aspect.REPRODUCIBILITY: ("replay", "rng_streams", "seed"),
    Aspect.OBSERVABILITY: (
        *("accounting", "configuration", "identity", "liveness", "reconciliation", "second_accounts"),
        *("surface_parity", "text", "transcript"),
    ),
    Aspect.CONTENT: ("constraint_replay", "filter_equality", "no_leak", "schema_conformance", "tool_call_equality"),
    Aspect.SPEED: ("acceptance_drift", "acceptance_outliers", "acceptance_theory", "draft_anchor", "performance"),
}
"""The checks of each aspect; every registered check has one."""


class AspectOutcome(StrEnum):
    """The joint outcome of one aspect's checks."""

    CHANGED = "changed"
    """A check found a fault."""
    UNDECIDED = "undecided"
    """None found a fault, and the evidence did not suffice for at least one."""
    UNCHANGED = "unchanged"
    """At least one is certified, and no other contradicts it or is inconclusive."""
    UNTESTED = "untested"
    """No check has a result."""


@dataclass(frozen=True, slots=True)
class AspectResult:
    """One aspect of an arm: the outcome, and the stored results behind it."""

    aspect: Aspect
    outcome: AspectOutcome
    checks: tuple[StoredCheck, ...]


@dataclass(frozen=True, slots=True)
class ArmDisclosure:
    """One candidate arm.

    short: situations that some check examined less often than required, with both numbers.
    absent: situations that any arm could meet and this one never did; None if the run counted none.
    """

    arm: StoredArm
    settings: Governance
    aspects: tuple[AspectResult, ...]
    short: tuple[StoredCoverage, ...]
    absent: tuple[str, ...] | None

    @property
    def faults(self) -> tuple[StoredCheck, ...]:
        """The results that contradict a claim."""
        return tuple(check for part in self.aspects for check in part.checks if check.verdict is Verdict.FAULT)

    @property
    def silent(self) -> bool:
        """True if the record holds no request or no result of this arm."""
        return not self.arm.counts.requests or not any(part.checks for part in self.aspects)


@dataclass(frozen=True, slots=True)
class Waived:
    """A requirement that a decision let pass, with the recorded reason."""

    text: str
    policy_sha256: str
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Disclosure:
    """The statement about one run.

    broken: the first damaged place of its record, if any. recomputed: its hashes were recomputed to know that.
    """

    results: Results
    models: tuple[ArtifactRef, ...]
    arms: tuple[ArmDisclosure, ...]
    waived: tuple[Waived, ...]
    erasures: tuple[StoredErasure, ...]
    broken: str | None
    recomputed: bool = True


def read_disclosure(store: Store, run: str, *, recompute: bool = True) -> Disclosure:
    """The statement about a stored run; recomputes every hash of its record, unless it is not asked to."""
    finished = store.load_run(run).record_root is not None
    damage = store.broken_places(run) if finished and recompute else ()
    broken = next((f"{place.place}: {place.message}" for place in damage), None)
    return replace(disclosure(results(store, run), store.erasures(run), broken), recomputed=recompute)


def disclosure(results: Results, erasures: Iterable[StoredErasure], broken: str | None) -> Disclosure:
    """The statement about a run with the erasures of its content.

    `broken` is the first place where its record is not what it was; None if it is whole.
    """
    run = results.run
    arms = tuple(_arm(arm, results) for arm in run.candidates)
    models = tuple(used for used in run.artifacts if used.kind in {"target", "draft", "tokenizer"})
    return Disclosure(results, models, arms, tuple(_waived(results.decisions)), tuple(erasures), broken)


def _arm(arm: StoredArm, results: Results) -> ArmDisclosure:
    own = [check for check in results.checks if check.arm == arm.name]
    counted = [row for row in results.coverage if row.arm == arm.name]
    seen = {row.situation for row in counted if row.occurred}
    document: Mapping[str, Any] = arm.effective.to_json()
    return ArmDisclosure(
        arm=arm,
        settings=governance(arm.spec, document, arm.lossless, results.run.environment.packages),
        aspects=tuple(_aspect(aspect, own) for aspect in Aspect),
        short=tuple(row for row in counted if row.short),
        absent=tuple(name for name in GENERAL if name not in seen) if counted else None,
    )


def _aspect(aspect: Aspect, checks: Iterable[StoredCheck]) -> AspectResult:
    own = tuple(check for check in checks if check.check in ASPECTS[aspect])
    verdicts = {check.verdict for check in own}
    if Verdict.FAULT in verdicts:
        outcome = AspectOutcome.CHANGED
    elif Verdict.INCONCLUSIVE in verdicts:
        outcome = AspectOutcome.UNDECIDED
    else:
        outcome = AspectOutcome.UNCHANGED if Verdict.CERTIFIED in verdicts else AspectOutcome.UNTESTED
    return AspectResult(aspect, outcome, own)


def _waived(decisions: Iterable[StoredDecision]) -> Iterator[Waived]:
    for decision in decisions:
        for reason in decision.reasons:
            text = reason.removeprefix(WAIVED)
            if text != reason and not text.startswith(LISTED):
                yield Waived(text, decision.policy_sha256, decision.actor, decision.created_at)
