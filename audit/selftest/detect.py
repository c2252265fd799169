"""How many tokens it takes to catch a fault, and which checks do.

Sizes are tried in order; the first at which enough seeds are caught is the
tokens needed. Three views of the same arms are kept apart: all that the engine
records, log-probabilities, text. A size is given up as soon as too many seeds
were missed. Knows nothing about how an arm is run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from audit import checks
from audit.evidence.records import Evidence, Level
from audit.selftest import battery
from audit.selftest.outside import from_outside
from audit.selftest.run_arm import alone, gather
from audit.selftest.scenarios import recording_of, suite_of
from audit.suite.spec import Suite
from engine import faults
from engine.faults.interface import Fault

SIZES: Final = (256, 1024, 4096, 16_384, 65_536, 200_000)
"""Tokens per arm."""
BRIEFLY: Final = 1024
"""The largest arm on which a fault of the record, or one over models with weights, is looked for from outside; and the
largest over models with weights that all checks judge: beyond it are those of the claim that the fault breaks.
"""
HEAVY: Final = 16_384
"""The largest arm over models with weights, which are a tenth as fast."""
POWER: Final = 0.9
"""Share of the seeds that must be caught."""
HOPELESS: Final = 2
"""From outside a size is given up when so many first seeds were all missed.

Were `POWER` of the seeds caught there, that would happen once in a hundred times.
"""
RECORDED: Final = ("acceptance", "cost")
"""Faults of these claims are judged with what a clean run of the pair recorded; it serves no others."""
RECORD: Final = "record"
ALONE: Final = frozenset({"acceptance_drift", "acceptance_theory"})
"""Checks that look at the candidate only: where no others are run, baseline and control would be made for nothing."""
VIEWS: Final[Mapping[str, Level]] = {RECORD: Level.L4, "log-probabilities": Level.L1, "text": Level.L0}


@dataclass(frozen=True, slots=True)
class DetectionLimits:
    """Seeds per size, and the largest arm: with the engine's records, and as seen from outside."""

    seeds: int
    record: int
    outside: int

    def allow(self, view: str, tokens: int, fault: Fault) -> bool:
        """Whether a view is tried at a size: from outside, briefly where the fault says that text does not show it."""
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
    """One view of one fault, at the last size that was tried.

    seeds: tried there; fewer than asked for where the size was given up.
    hits: seeds in which each check called a fault, for the checks that looked at least once.
    """

    caught: bool
    tokens: int
    seeds: int
    seen: int
    hits: Mapping[str, int]

    @property
    def first(self) -> tuple[str, ...]:
        """The checks with the most seeds."""
        most = max(self.hits.values(), default=0)
        return tuple(name for name, count in self.hits.items() if count == most > 0)

    @property
    def others(self) -> tuple[str, ...]:
        """Checks that caught some seeds and are not the first."""
        return tuple(name for name, count in self.hits.items() if count and name not in self.first)

    @property
    def missed(self) -> tuple[str, ...]:
        """Checks that looked and caught nothing."""
        return tuple(name for name, count in self.hits.items() if not count)


@dataclass(frozen=True, slots=True)
class Detection:
    """One fault through every view."""

    fault: str
    sights: Mapping[str, ViewDetection]


def detect(name: str, limits: DetectionLimits) -> Detection:
    """Try sizes until every view has caught the fault or has none left."""
    fault = faults.load(name)
    found: dict[str, ViewDetection] = {}
    for tokens in SIZES:
        open_views = [view for view in VIEWS if limits.allow(view, tokens, fault) and not _done(found.get(view))]
        if open_views:
            found |= _at_size(fault, tokens, limits, open_views)
    return Detection(name, {view: found[view] for view in VIEWS if view in found})


def _done(sight: ViewDetection | None) -> bool:
    return sight is not None and sight.caught


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
    """The checks that judge an arm of this size: all, or those of the fault's own claim."""
    names = battery.names(level)
    if fault.scenario.models == "scripted" or tokens <= BRIEFLY:
        return names
    return tuple(name for name in names if checks.load(name).claim == fault.breaks)


def _settings(fault: Fault, suite: Suite) -> battery.Settings:
    """What a clean run of the pair recorded, for the faults that it serves."""
    return battery.recorded(alone(recording_of(suite))) if fault.breaks in RECORDED else {}


@dataclass(frozen=True, slots=True)
class CheckDetection:
    """A check that no fault needed, by itself. `fault` is the first that it catches, None if it catches none."""

    check: str
    fault: str | None
    tokens: int
    seeds: int
    seen: int


def catches(detections: Iterable[Detection]) -> frozenset[str]:
    """The checks that caught a seed of any fault in any view."""
    sights = (sight for each in detections for sight in each.sights.values())
    return frozenset(name for sight in sights for name, count in sight.hits.items() if count)


def seek(check: str, limits: DetectionLimits) -> CheckDetection:
    """The least size at which a check that others are faster than catches a fault of its own claim.

    A search ends at the first size at which any check catches the fault, and a check that needs more evidence never
    gets it there. Sizes end at `HEAVY`, because a check that catches nothing would be tried on all of them.
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
    """One check at one size, until it is clear that it does not look or does not see."""
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
        verdicts = battery.judged(battery.results(shown, listed, settings))
        self.seeds += 1
        self.seen += bool(verdicts.faults)
        self._looked.update(verdicts.looked)
        self._hits.update(verdicts.faults)

    def looked(self, check: str) -> bool:
        """Whether a check looked at any seed."""
        return self._looked[check] > 0

    @property
    def hopeless(self) -> bool:
        """The first seeds were all missed."""
        return not self.seen and self.seeds >= HOPELESS

    def may_reach(self, view: str, limits: DetectionLimits) -> bool:
        """Whether enough seeds can still be caught and, from outside, whether there is hope."""
        hopeless = view != RECORD and self.hopeless
        return not hopeless and self.seeds - self.seen <= limits.seeds - limits.needed

    def caught(self, limits: DetectionLimits) -> bool:
        """All seeds were tried, and enough of them caught."""
        return self.seeds == limits.seeds and self.seen >= limits.needed

    def sight(self, tokens: int, limits: DetectionLimits) -> ViewDetection:
        """What has been counted."""
        hits = {name: self._hits[name] for name in battery.names() if self._looked[name]}
        return ViewDetection(self.caught(limits), tokens, self.seeds, self.seen, hits)
