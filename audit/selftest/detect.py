"""How many tokens it takes to catch a fault, and which checks do.

Sizes are tried in order; the first at which enough seeds are caught is the
tokens needed. Three views of the same arms are kept apart: all that the engine
records, log-probabilities, text. A size is given up as soon as too many seeds
were missed. Knows nothing about how an arm is run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from audit.records import Evidence, Level
from audit.selftest import battery
from audit.selftest.arenas import recording_of, suite_of
from audit.selftest.outside import from_outside
from audit.selftest.run_arm import alone, gather
from engine import faults
from engine.faults.base import Fault

SIZES: Final = (256, 1024, 4096, 16_384, 65_536, 200_000)
"""Tokens per arm."""
BRIEFLY: Final = 1024
"""The largest arm on which a fault of the record is looked for from outside."""
HEAVY: Final = 16_384
"""The largest arm over models with weights, which are a tenth as fast."""
POWER: Final = 0.9
"""Share of the seeds that must be caught."""
HOPELESS: Final = 2
"""From outside a size is given up when so many first seeds were all missed.

Were `POWER` of the seeds caught there, that would happen once in a hundred times.
"""
RECORDED: Final = "acceptance"
"""Faults of this claim are judged with the acceptance that a clean run of the pair recorded; it serves no others."""
RECORD: Final = "record"
VIEWS: Final[Mapping[str, Level]] = {RECORD: Level.L4, "log-probabilities": Level.L1, "text": Level.L0}


@dataclass(frozen=True, slots=True)
class Limits:
    """Seeds per size, and the largest arm: with the engine's records, and as seen from outside."""

    seeds: int
    record: int
    outside: int

    def allow(self, view: str, tokens: int, fault: Fault) -> bool:
        """Whether a view is tried at a size: from outside, briefly where the fault says that text does not show it."""
        outside = self.outside if fault.seen_from == "text" else min(self.outside, BRIEFLY)
        most = self.record if view == RECORD else outside
        return tokens <= (most if fault.arena.models == "scripted" else min(most, HEAVY))

    @property
    def needed(self) -> int:
        """Seeds that must be caught."""
        return math.ceil(POWER * self.seeds)


@dataclass(frozen=True, slots=True)
class Sight:
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
    sights: Mapping[str, Sight]


def detect(name: str, limits: Limits) -> Detection:
    """Try sizes until every view has caught the fault or has none left."""
    fault = faults.load(name)
    found: dict[str, Sight] = {}
    for tokens in SIZES:
        open_views = [view for view in VIEWS if limits.allow(view, tokens, fault) and not _done(found.get(view))]
        if open_views:
            found |= _at_size(fault, tokens, limits, open_views)
    return Detection(name, {view: found[view] for view in VIEWS if view in found})


def _done(sight: Sight | None) -> bool:
    return sight is not None and sight.caught


def _at_size(fault: Fault, tokens: int, limits: Limits, views: Sequence[str]) -> dict[str, Sight]:
    """All open views at one size."""
    counts = {view: _Count() for view in views}
    for seed in range(limits.seeds):
        going = [view for view in views if counts[view].may_reach(view, limits)]
        if not going:
            break
        listed = battery.names(max(VIEWS[view] for view in going))
        suite = suite_of(fault.arena, fault.name, seed, tokens, listed)
        evidence = gather(suite)
        settings = battery.recorded(alone(recording_of(suite))) if fault.breaks == RECORDED and RECORD in going else {}
        for view in going:
            counts[view].add(evidence, VIEWS[view], settings)
    return {view: count.sight(tokens, limits) for view, count in counts.items()}


class _Count:
    """Seeds of one view at one size."""

    def __init__(self) -> None:
        self._seeds = self._seen = 0
        self._looked: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()

    def add(self, evidence: Evidence, level: Level, settings: battery.Settings) -> None:
        """Judge one seed's arm."""
        shown = evidence if level is Level.L4 else from_outside(evidence, level)
        verdicts = battery.judged(battery.results(shown, battery.names(level), settings))
        self._seeds += 1
        self._seen += bool(verdicts.faults)
        self._looked.update(verdicts.looked)
        self._hits.update(verdicts.faults)

    def may_reach(self, view: str, limits: Limits) -> bool:
        """Whether enough seeds can still be caught and, from outside, whether there is hope."""
        hopeless = view != RECORD and not self._seen and self._seeds >= HOPELESS
        return not hopeless and self._seeds - self._seen <= limits.seeds - limits.needed

    def sight(self, tokens: int, limits: Limits) -> Sight:
        """What has been counted."""
        hits = {name: self._hits[name] for name in battery.names() if self._looked[name]}
        caught = self._seeds == limits.seeds and self._seen >= limits.needed
        return Sight(caught, tokens, self._seeds, self._seen, hits)
