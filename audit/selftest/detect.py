"""Finds how many tokens it takes to catch a fault, and which checks catch it.

The search tries sizes in order; the first with enough seeds caught is the number of tokens needed. Three views of the
same arms stay separate: the engine's full record, log-probabilities, text. A size is abandoned as soon as too many
seeds are missed.

Evidence as visible outside the engine: text and finish reasons, optionally with log-probabilities.

The module rewrites the candidate's records as those of an engine that decodes one token at a time, so that checks see
only what an interface would give. Baseline, control and passes over given tokens stay complete, because they are the
auditor's own runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from audit import checks
from audit.evidence.records import ArmRecord, Evidence, Level
from audit.selftest import battery
from audit.selftest.run_arm import alone, gather
from audit.selftest.scenarios import recording_of, suite_of
from audit.suite.spec import Suite
from engine import faults
from engine.core.types import Emitted, Proposal, RecordLevel, Role, StepOutcome, StepRecord
from engine.faults.interface import Fault
from engine.record.effective import Effective
from engine.record.recorder import to_trace
from engine.record.rows.reduction import reduce
from engine.record.trace import Trace


def from_outside(evidence: Evidence, level: Level) -> Evidence:
    """Return the evidence with the candidate's arms reduced to `level`, L0 or L1."""
    companions = {kind: arm if kind.reads else _reduced(arm, level) for kind, arm in evidence.companions.items()}
    return replace(evidence, candidate=_reduced(evidence.candidate, level), companions=companions)


def _reduced(arm: ArmRecord, level: Level) -> ArmRecord:
    requests = tuple(replace(request, trace=plain_trace(request.trace, level)) for request in arm.requests)
    return replace(arm, level=level, effective=Effective(), requests=requests)


def plain_trace(trace: Trace, level: Level) -> Trace:
    """One step per emitted token, nothing drafted; log-probabilities at L1, no other number."""
    facts = {name: fact for name, fact in trace.header.facts.items() if name not in ("row", "round", "unlike")}
    header = replace(trace.header, level=RecordLevel.TOKENS, proposer="not told", facts=facts)
    start = len(header.prompt)
    records = [_step(index, start + index, token, header.vocabulary) for index, token in enumerate(trace.tokens)]
    plain = to_trace(header, [reduce(header, records)])
    return replace(plain, logprob=trace.logprob) if level >= Level.L1 else plain


def _step(index: int, position: int, token: int, vocabulary: int) -> StepRecord:
    verdict = StepOutcome((Emitted(token, Role.PLAIN, 0, float("nan")),))
    return StepRecord(index, position, Proposal(), verdict, np.empty((0, vocabulary), np.float32), None)


SIZES: Final = (256, 1024, 4096, 16_384, 65_536, 200_000)
"""Tokens per arm."""
BRIEFLY: Final = 1024
"""The largest arm for views from outside if the fault shows only in the record or the models have weights; also the
largest over models with weights that all checks judge: beyond it only those of the broken claim do.
"""
HEAVY: Final = 16_384
"""The largest arm over models with weights, which run at a tenth of the speed."""
POWER: Final = 0.9
"""Share of the seeds that must be caught."""
HOPELESS: Final = 2
"""Without the record, a size is abandoned if this many first seeds are all missed.

With `POWER` of the seeds caught, that happens once in a hundred times.
"""
RECORDED: Final = ("acceptance", "cost")
"""Only faults of these claims are judged with the recorded rates of a clean run."""
RECORD: Final = "record"
ALONE: Final = frozenset({"acceptance_drift", "acceptance_theory"})
"""Checks that need only the candidate; if no others run, baseline and control are skipped."""
VIEWS: Final[Mapping[str, Level]] = {RECORD: Level.L4, "log-probabilities": Level.L1, "text": Level.L0}


@dataclass(frozen=True, slots=True)
class DetectionLimits:
    """Seeds per size, and the largest arm with and without the engine's record."""

    seeds: int
    record: int
    outside: int

    def allow(self, view: str, tokens: int, fault: Fault) -> bool:
        """True if a view is tried at a size; from outside, fewer sizes if text does not show the fault."""
        light = fault.scenario.models == "scripted"
        outside = self.outside if light and fault.seen_from == "text" else min(self.outside, BRIEFLY)
        most = self.record if view == RECORD else outside
        return tokens <= (most if light else min(most, HEAVY))

    @property
    def needed(self) -> int:
        """Seeds that must be caught."""
        return math.ceil(POWER * self.seeds)


@dataclass(frozen=True, slots=True)
class ViewDetection:
    """One view of one fault, at the last size tried.

    seeds: number tried at that size; fewer than requested if the size was abandoned.
    hits: number of seeds with a fault, per check that ran at least once.
    """

    caught: bool
    tokens: int
    seeds: int
    seen: int
    hits: Mapping[str, int]

    @property
    def first(self) -> tuple[str, ...]:
        """The checks that caught the most seeds."""
        most = max(self.hits.values(), default=0)
        return tuple(name for name, count in self.hits.items() if count == most > 0)

    @property
    def others(self) -> tuple[str, ...]:
        """Checks that caught some seeds, but not the most."""
        return tuple(name for name, count in self.hits.items() if count and name not in self.first)

    @property
    def missed(self) -> tuple[str, ...]:
        """Checks that ran and caught nothing."""
        return tuple(name for name, count in self.hits.items() if not count)


@dataclass(frozen=True, slots=True)
class Detection:
    """One fault through every view."""

    fault: str
    sights: Mapping[str, ViewDetection]


def detect(name: str, limits: DetectionLimits) -> Detection:
    """Try sizes until every view has caught the fault or run out of sizes."""
    fault = faults.load(name)
    mapping: dict[str, ViewDetection] = {}
    for tokens in SIZES:
        done = {view for view, sight in mapping.items() if sight.caught}
        open_views = [view for view in VIEWS if limits.allow(view, tokens, fault) and view not in done]
        if open_views:
            mapping |= _at_size(fault, tokens, limits, open_views)
    return Detection(name, {view: mapping[view] for view in VIEWS if view in mapping})


def _at_size(fault: Fault, tokens: int, limits: DetectionLimits, views: Sequence[str]) -> dict[str, ViewDetection]:
    """All open views at one size."""
    counts = {view: _Count() for view in views}
    for seed in range(limits.seeds):
        going = [view for view in views if counts[view].may_reach(view, limits)]
        if not going:
            break
        listed = _listed(fault, tokens, max(VIEWS[view] for view in going))
        suite = suite_of(fault.scenario, fault.name, seed, tokens, listed)
        evidence = alone(suite) if set(listed) <= ALONE else gather(suite)
        settings = _settings(fault, suite) if RECORD in going else {}
        for view in going:
            level = VIEWS[view]
            shown = evidence if level is Level.L4 else from_outside(evidence, level)
            counts[view].add(shown, _listed(fault, tokens, level), settings)
    return {view: count.sight(tokens, limits) for view, count in counts.items()}


def _listed(fault: Fault, tokens: int, level: Level) -> tuple[str, ...]:
    """The checks that judge an arm of this size: all, or those of the broken claim."""
    names = battery.names(level)
    if fault.scenario.models == "scripted" or tokens <= BRIEFLY:
        return names
    return tuple(name for name in names if checks.load(name).claim == fault.breaks)


def _settings(fault: Fault, suite: Suite) -> battery.Settings:
    """The recorded rates of a clean run, for the faults that use them."""
    return battery.recorded(alone(recording_of(suite))) if fault.breaks in RECORDED else {}


@dataclass(frozen=True, slots=True)
class CheckDetection:
    """A check that was never needed, run by itself. `fault` is the first that it catches, None if it catches none."""

    check: str
    fault: str | None
    tokens: int
    seeds: int
    seen: int


def catches(detections: Iterable[Detection]) -> frozenset[str]:
    """The checks that caught a seed of any fault in any view."""
    sights = (sight for detection in detections for sight in detection.sights.values())
    return frozenset(name for sight in sights for name, count in sight.hits.items() if count)


def seek(check: str, limits: DetectionLimits) -> CheckDetection:
    """Find the smallest size at which a check that others outran catches a fault of its own claim.

    A search ends at the first size at which any check catches the fault, so a slower check never sees larger arms.
    Sizes end at `HEAVY`, because a check that catches nothing would run on all of them.
    """
    claim = checks.load(check).claim
    broken = [fault for fault in map(faults.load, faults.REGISTRY) if fault.breaks == claim]
    for tokens in SIZES:
        for fault in broken:
            if tokens <= HEAVY and limits.allow(RECORD, tokens, fault):
                count = _alone(check, fault, tokens, limits)
                if count.caught(limits):
                    return CheckDetection(check, fault.name, tokens, count.seeds, count.seen)
    return CheckDetection(check, None, min(HEAVY, limits.record), 0, 0)


def _alone(check: str, fault: Fault, tokens: int, limits: DetectionLimits) -> _Count:
    """Try one check at one size; stop early if it does not run or misses the first seeds."""
    count = _Count()
    for seed in range(limits.seeds):
        suite = suite_of(fault.scenario, fault.name, seed, tokens, (check,))
        count.add(gather(suite), (check,), _settings(fault, suite))
        if not count.looked(check) or count.hopeless:
            break
    return count


class _Count:
    """Seeds of one view at one size."""

    def __init__(self) -> None:
        self.seeds = self.seen = 0
        self._looked: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()

    def add(self, shown: Evidence, listed: Iterable[str], settings: battery.Settings) -> None:
        """Judge one seed's arm."""
        results = battery.results(shown, listed, settings)
        faults = battery.faulted(results)
        self.seeds += 1
        self.seen += bool(faults)
        self._looked.update(results.keys())
        self._hits.update(faults)

    def looked(self, check: str) -> bool:
        """True if a check ran on any seed."""
        return self._looked[check] > 0

    @property
    def hopeless(self) -> bool:
        """True if the first seeds were all missed."""
        return not self.seen and self.seeds >= HOPELESS

    def may_reach(self, view: str, limits: DetectionLimits) -> bool:
        """True if enough seeds can still be caught and, from outside, the first were not all missed."""
        hopeless = view != RECORD and self.hopeless
        return not hopeless and self.seeds - self.seen <= limits.seeds - limits.needed

    def caught(self, limits: DetectionLimits) -> bool:
        """True if all seeds were tried and enough of them caught."""
        return self.seeds == limits.seeds and self.seen >= limits.needed

    def sight(self, tokens: int, limits: DetectionLimits) -> ViewDetection:
        """Summarise the counts."""
        hits = {name: self._hits[name] for name in battery.names() if self._looked[name]}
        return ViewDetection(self.caught(limits), tokens, self.seeds, self.seen, hits)
