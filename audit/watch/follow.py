"""Follow a server's counters: one look reads the page, judges it and stores it before anything is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from audit.store import Store
from audit.store.watches import StoredWatch, WatchReading
from audit.watch.detect import Detectors, NamedAlarm
from audit.watch.growth import reading
from engine.backends.openai.errors import AttemptError
from engine.backends.openai.server_counters import ServerCounters, by_model, counters_of

UNKNOWN_PAGE: Final = "the page has none of the counters of vLLM, SGLang or audit serve"
ABSENT: Final = "the page does not name the model any more"


@dataclass(frozen=True, slots=True)
class Look:
    """What one look stored, and the alarms that it raised."""

    at: datetime
    readings: tuple[WatchReading, ...]
    alarms: tuple[NamedAlarm, ...]

    @property
    def read(self) -> bool:
        """True if the page counts drafts, or has gauges of them, for some model."""
        counted = (json.loads(each.counters) for each in self.readings if each.counters is not None)
        return any(each["drafted"] is not None or each["length"] is not None for each in counted)


@dataclass(frozen=True, slots=True)
class _Before:
    at: datetime
    counters: ServerCounters


class Follower:
    """One watch of a store, continued from its stored series.

    Args:
        store: the store.
        watch: the watch.
        fetch: gives the page of counters; raises `AttemptError`.
    """

    def __init__(self, store: Store, watch: StoredWatch, fetch: Callable[[], str]) -> None:
        self._store = store
        self._watch = watch
        self._fetch = fetch
        self.detectors = Detectors(watch.settings)
        stored = store.watches.readings(watch.id)
        self.detectors.replay(stored)
        self._before = {
            each.model: _Before(each.at, counters_of(json.loads(each.counters))) for each in stored if each.counters
        }

    def look(self, clock: Callable[[], datetime]) -> Look:
        """Read the counters once, and store what they say."""
        known = len(self.detectors.alarms)
        try:
            page = self._fetch()
        except AttemptError as error:
            return self._stored(clock(), [WatchReading("", clock(), gap=str(error))], known)
        at, models = clock(), by_model(page)
        if not models:
            return self._stored(at, [WatchReading("", at, gap=UNKNOWN_PAGE)], known)
        readings = [self._read(model, at, now) for model, now in models.items()]
        readings += [WatchReading(model, at, gap=ABSENT) for model in self._before if model not in models]
        return self._stored(at, readings, known)

    def _read(self, model: str, at: datetime, now: ServerCounters) -> WatchReading:
        before = self._before.get(model)
        made = reading(model, at, now, before.counters if before else None, before.at if before else at)
        self._before[model] = _Before(at, now)
        return self.detectors.judged(made)

    def _stored(self, at: datetime, readings: Sequence[WatchReading], known: int) -> Look:
        self._store.watches.add(self._watch.id, readings)
        return Look(at, tuple(readings), tuple(self.detectors.alarms[known:]))
