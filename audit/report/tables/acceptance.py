"""Acceptance and speed of the arms of a run, from the sums that the store makes: rates are derived here, once.

Acceptance by place in the draft has two forms. The unconditional rate of place i is the share of steps with a draft
that kept at least i tokens; the conditional one is the share of those that reached place i: they kept the i - 1 tokens
before it and, in a chain, drafted that far. The counts of a tree do not say how deep it was along the kept path, so a
step of a tree reaches place i by keeping i - 1 tokens, and its conditional rate is a lower bound.

The estimators of acceptance of a run's arms, from the drafts of each request in the store.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from audit.stats.acceptance.estimators import AcceptanceEstimate, DraftTotals, contradiction, estimates
from audit.store import Store, StoredArm, StoredCheck, StoredRun
from audit.store.base.values import ArmCounts
from audit.store.sums.drafts import ArmDrafts, ArmDraftSums, sums_of
from audit.store.sums.sums import DomainCounts, Latencies, SpanCounts, StepCounts
from engine.core.sequences import grouped

PERFORMANCE: Final = "performance"


@dataclass(frozen=True, slots=True)
class PlaceCounts:
    """Steps of an arm at one place in the draft, from 1: those that drafted at all, that reached it, that kept it."""

    place: int
    steps: int
    reached: int
    kept: int

    @property
    def unconditional(self) -> float:
        """Share of the steps with a draft that kept this many tokens."""
        return self.kept / self.steps

    @property
    def conditional(self) -> float | None:
        """Share of the steps that reached this place; None if none did."""
        return self.kept / self.reached if self.reached else None


@dataclass(frozen=True, slots=True)
class LengthCounts:
    """Number of steps with a draft that kept exactly `accepted` drafted tokens, of `of` such steps."""

    accepted: int
    steps: int
    of: int


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """Speed of an arm over its baseline's, from times in the store.

    measured: tokens per second of requests over the baseline's. low, high: its interval at 98 %, by the check
        `performance`; None if the suite lacks it. modelled: tokens per step, divided by the mean time of a step in
        steps of the baseline; None without times of steps. It leaves out the time between steps.
    """

    baseline: str
    measured: float
    low: float | None
    high: float | None
    modelled: float | None


@dataclass(frozen=True, slots=True)
class ArmAcceptance:
    """One arm that drafted, or whose engine says how often it did.

    steps, drafting: steps on record, and those with a draft; None for an endpoint. model_length: tokens per step by
    Leviathan's formula at the conditional rate and gamma; None for a tree.
    """

    arm: StoredArm
    tree: bool
    steps: int | None
    drafting: int | None
    places: tuple[PlaceCounts, ...]
    lengths: tuple[LengthCounts, ...]
    domains: tuple[DomainCounts, ...]
    spans: tuple[SpanCounts, ...]
    theory: Sequence[Mapping[str, Any]]
    """Strata of `acceptance_theory`, the pooled one first: positions, tokens kept there, and what p and q give."""
    speed_up: SpeedUp | None

    @property
    def counts(self) -> ArmCounts:
        """The arm's sums, with the server's accounts for an endpoint."""
        return self.arm.counts

    @property
    def rate(self) -> float | None:
        """Accepted over drafted tokens; None without drafts."""
        counts = self.counts
        return counts.accepted / counts.drafted if counts.drafted and counts.accepted is not None else None

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted tokens per step with a draft (tau); None if no step drafted."""
        return 1 + sum(one.accepted * one.steps for one in self.lengths) / self.drafting if self.drafting else None

    @property
    def tokens_per_step(self) -> float | None:
        """Emitted tokens per step, steps without a draft included."""
        return self.counts.output / self.steps if self.steps else None

    @property
    def alpha(self) -> float | None:
        """Accepted tokens over the places that steps reached: the chance that a drafted token is kept; chains only."""
        reached = sum(one.reached for one in self.places)
        return None if self.tree or not reached else sum(one.kept for one in self.places) / reached

    @property
    def model_length(self) -> float | None:
        """Acceptance length by (1 - alpha^(gamma+1)) / (1 - alpha); None without a fixed gamma, or for a tree."""
        # imported late: a command that shows a run needs no numpy
        from engine.record.cost import expected_tokens

        alpha, gamma = self.alpha, self.arm.effective.gamma
        return None if alpha is None or not gamma else expected_tokens(alpha, gamma)


@dataclass(frozen=True, slots=True)
class RunAcceptance:
    """The arms of a run with acceptance, and the latencies of all arms that decode.

    silent: candidates without acceptance, with the reason in words.
    """

    arms: tuple[ArmAcceptance, ...]
    latencies: tuple[Latencies, ...]
    silent: tuple[tuple[str, str], ...]


def run_acceptance(store: Store, run: StoredRun, checks: Sequence[StoredCheck]) -> RunAcceptance:
    """Acceptance, speed and latency of a run."""
    sums = store.figures.sums(run.ulid)
    parts: tuple[Sequence[Any], ...] = (sums.steps, sums.domains, sums.spans, sums.latencies)
    steps, domains, spans, latencies = (grouped((row.arm, row) for row in part) for part in parts)
    arms = tuple(
        ArmAcceptance(
            arm=arm,
            tree=_tree(arm),
            steps=arm.counts.steps,
            drafting=sum(one.steps for one in steps.get(arm.name, []) if one.drafted) or None,
            places=tuple(_places(steps.get(arm.name, []), tree=_tree(arm))),
            lengths=tuple(_lengths(steps.get(arm.name, []))),
            domains=tuple(domains.get(arm.name, [])),
            spans=tuple(spans.get(arm.name, [])),
            theory=_theory(arm.name, checks),
            speed_up=_speed_up(arm, checks, steps, latencies),
        )
        for arm in run.candidates
        if arm.counts.drafted
    )
    silent = tuple((arm.name, _why_silent(arm)) for arm in run.candidates if not arm.counts.drafted)
    timed = tuple(latencies[arm.name][0] for arm in run.arms if arm.name in latencies and not arm.kind.reads)
    return RunAcceptance(arms, timed, silent)


def _tree(arm: StoredArm) -> bool:
    return arm.effective.proposer_shape == "tree"


def _why_silent(arm: StoredArm) -> str:
    if not arm.counts.requests:
        return "it has no requests"
    return "nobody counted its drafts" if arm.counts.drafted is None else "it drafted no token"


def _places(steps: Sequence[StepCounts], *, tree: bool) -> Iterator[PlaceCounts]:
    drafting = [one for one in steps if one.drafted]
    deepest = max((one.accepted if tree else one.drafted for one in drafting), default=0)
    every = sum(one.steps for one in drafting)
    for place in range(1, deepest + 1):
        there = [one for one in drafting if one.accepted >= place - 1 and (tree or one.drafted >= place)]
        kept = sum(one.steps for one in drafting if one.accepted >= place)
        yield PlaceCounts(place, every, sum(one.steps for one in there), kept)


def _lengths(steps: Sequence[StepCounts]) -> Iterator[LengthCounts]:
    drafting = [one for one in steps if one.drafted]
    every = sum(one.steps for one in drafting)
    for accepted in range(max((one.accepted for one in drafting), default=-1) + 1):
        yield LengthCounts(accepted, sum(one.steps for one in drafting if one.accepted == accepted), every)


def _theory(arm: str, checks: Iterable[StoredCheck]) -> Sequence[Mapping[str, Any]]:
    check = _result(arm, "acceptance_theory", checks)
    return () if check is None else check.details.get("strata", ())


def _result(arm: str, name: str, checks: Iterable[StoredCheck]) -> StoredCheck | None:
    return next((one for one in checks if one.arm == arm and one.check == name), None)


def _speed_up(
    arm: StoredArm,
    checks: Iterable[StoredCheck],
    steps: Mapping[str, Sequence[StepCounts]],
    latencies: Mapping[str, Sequence[Latencies]],
) -> SpeedUp | None:
    """None without a baseline that was timed in the same run."""
    name = arm.spec.get("baseline")
    if name is None or name not in latencies or arm.name not in latencies:
        return None
    ours, theirs = latencies[arm.name][0], latencies[name][0]
    interval = _interval(_result(arm.name, PERFORMANCE, checks))
    plain = (ours.output / ours.total_us) / (theirs.output / theirs.total_us)
    return SpeedUp(
        baseline=name,
        measured=interval.get("estimate", plain),
        low=interval.get("low"),
        high=interval.get("high"),
        modelled=_modelled(steps.get(arm.name, ()), steps.get(name, ())),
    )


def _interval(check: StoredCheck | None) -> Mapping[str, Any]:
    stated = None if check is None else check.details.get("speed_up")
    return stated if isinstance(stated, Mapping) else {}


def _modelled(ours: Sequence[StepCounts], theirs: Sequence[StepCounts]) -> float | None:
    """Tokens per step over the time of a step in plain steps, as `engine.record.cost.speedup_of` has it."""
    count, plain = (sum(one.steps for one in rows) for rows in (ours, theirs))
    own, other = (sum(one.draft_us + one.verify_us for one in rows) for rows in (ours, theirs))
    if not count or not plain or not own or not other:
        return None
    emitted = sum(one.emitted * one.steps for one in ours)
    return (emitted / count) / ((own / count) / (other / plain))


@dataclass(frozen=True, slots=True)
class ArmEstimates:
    """The estimates of one arm, none if its account contradicts itself; then `contradictions` says where."""

    arm: str
    values: tuple[AcceptanceEstimate, ...]
    contradictions: tuple[str, ...] = ()


def run_estimates(store: Store, run: StoredRun) -> tuple[ArmEstimates, ...]:
    """The estimates of every candidate whose drafts somebody counted."""
    known = {one.arm: one for one in store.figures.draft_sums(run.ulid)}
    result = (_estimates(store, run, arm, known.get(arm.name)) for arm in run.candidates if arm.counts.drafted)
    return tuple(one for one in result if one.values or one.contradictions)


def _estimates(store: Store, run: StoredRun, arm: StoredArm, known: ArmDraftSums | None) -> ArmEstimates:
    if known is None:
        return arm_estimates(arm, store.figures.drafts(run.ulid, arm.name))
    return ArmEstimates(arm.name, estimates(known.sums), known.contradictions)


def arm_estimates(arm: StoredArm, drafts: ArmDrafts) -> ArmEstimates:
    """The estimates of one arm; requests that nobody counted leave only those of the server's counters."""
    known, grown = sums_of(arm.name, drafts.requests), drafts.counters
    result = None if grown is None else contradiction(grown.steps, grown.drafted, grown.accepted)
    broken = (*known.contradictions, *([] if result is None else [f"the server's counters: {result}"]))
    if broken:
        return ArmEstimates(arm.name, (), broken)
    counters = None if grown is None else DraftTotals(grown.steps, grown.drafted, grown.accepted)
    return ArmEstimates(arm.name, estimates(None if drafts.uncounted else known.sums, counters))


def contradiction_lines(arms: Sequence[ArmEstimates]) -> list[str]:
    """Return one line per arm whose account of its drafts contradicts itself."""
    return [
        f"arm {one.arm}: no estimate of acceptance, its account contradicts itself: {'; '.join(one.contradictions)}"
        for one in arms
        if one.contradictions
    ]
