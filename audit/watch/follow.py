"""Follow a server's counters: one look reads the page, judges it and stores it before anything is reported."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from audit.store import Store
from audit.store.reading.watches import StoredWatch, WatchReading
from audit.watch.canary import Canary
from audit.watch.detect import Detectors, NamedAlarm, SeriesName
from audit.watch.growth import reading
from engine.backends.openai.errors import AttemptError
from engine.backends.openai.server_counters import ServerCounters, by_label, by_model, counters_of

UNKNOWN_PAGE: Final = "the page has none of the counters of vLLM, llama.cpp, TensorRT-LLM, SGLang or audit serve"
ABSENT: Final = "the page does not name the model any more"


@dataclass(frozen=True, slots=True)
class Look:
    """Readings that one look stored, and its alarms."""

    at: datetime
    readings: tuple[WatchReading, ...]
    alarms: tuple[NamedAlarm, ...]

    @property
    def read(self) -> bool:
        """True if the page counts drafts, or has gauges of them, for some model."""
        counted = (json.loads(other.counters) for other in self.readings if other.counters is not None)
        return any(item["drafted"] is not None or item["length"] is not None for item in counted)

    @property
    def tested(self) -> bool:
        """True if the detectors of a model's whole traffic took a reading."""
        return any(item.gap is None and item.label is None and item.drafted is not None for item in self.readings)


class Follower:
    """One watch of a store, continued from its stored series.

    Args:
        store: the store.
        watch: the watch.
        fetch: gives the page of counters; raises `AttemptError`.
        canary: is replayed for every model after each page.
        by: labels of the page; each value of one has a series and detectors of its own.
    """

    def __init__(
        self,
        store: Store,
        watch: StoredWatch,
        fetch: Callable[[], str],
        canary: Canary | None = None,
        by: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._watch = watch
        self._fetch = fetch
        self._canary, self._by = canary, tuple(by)
        self.detectors = Detectors(watch.settings)
        stored = store.watches.readings(watch.id)
        self.detectors.replay(stored)
        # of each series the time of its last counters, and these as JSON, which is read only if it is needed
        self._before: dict[SeriesName, tuple[datetime, str]] = {}
        self._first: dict[str, str] = {}
        self._keep(stored)

    def look(self, clock: Callable[[], datetime]) -> Look:
        """Read the counters once, and store what they say."""
        known = len(self.detectors.alarms)
        try:
            page = self._fetch()
        except AttemptError as error:
            return self._stored(clock(), [WatchReading("", clock(), gap=str(error))], known)
        draft = self._watch.settings.unit
        at, models = clock(), by_model(page, draft)
        if not models:
            return self._stored(at, [WatchReading("", at, gap=UNKNOWN_PAGE)], known)
        readings = [self.detectors.judged(self._read(model, None, at, now)) for model, now in models.items()]
        gone = {model for model, label in self._before if label is None} - models.keys()
        readings += [WatchReading(model, at, gap=ABSENT) for model in sorted(gone)]
        for name in self._by:
            parts = by_label(page, name, draft).items()
            parted = (self._read(model, f"{name}={value}", at, now) for (model, value), now in parts)
            readings += map(self.detectors.judged, parted)
        look = self._stored(at, readings, known)
        return look if self._canary is None else self._replayed(self._canary, look, models, clock)

    def _replayed(
        self, canary: Canary, look: Look, models: Mapping[str, ServerCounters], clock: Callable[[], datetime]
    ) -> Look:
        """The look with the canary's readings; the counters' own are stored before it begins."""
        for model, now in models.items():
            readings = list(canary.readings(model, now, clock, self._first))
            self._store.watches.add(self._watch.id, readings)
            self._keep(readings)
            look = replace(look, readings=(*look.readings, *readings))
        return look

    def _keep(self, readings: Sequence[WatchReading]) -> None:
        """Keep the last counters of each series, and the digests of answers that are seen for the first time."""
        for other in readings:
            # the whole traffic goes on after the canary; behind one without counters it begins anew
            series = other.model, None if other.answers is not None else other.label
            if other.counters is not None:
                self._before[series] = (other.at, other.counters)
            elif other.answers is not None:
                self._before.pop(series, None)
            if other.answers is not None:
                for request, answer in json.loads(other.answers).items():
                    self._first.setdefault(request, answer)

    def _read(self, model: str, label: str | None, at: datetime, now: ServerCounters) -> WatchReading:
        since, counters = self._before.get((model, label), (at, None))
        before = None if counters is None else counters_of(json.loads(counters))
        return replace(reading(model, at, now, before, since), label=label)

    def _stored(self, at: datetime, readings: Sequence[WatchReading], known: int) -> Look:
        self._store.watches.add(self._watch.id, readings)
        self._keep(readings)
        return Look(at, tuple(readings), tuple(self.detectors.alarms[known:]))
