"""The detectors of a watch, recomputed from its stored series: nothing that they know is anywhere else.

A series is a model's traffic, or a part of it by the value of a label (a rank, a domain). All series share the watch's
false alarms; a later one has a smaller share.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

import numpy as np

from audit.stats.acceptance.surveillance import (
    ChangeDirection,
    Looks,
    WatchAlarm,
    WatchPlan,
    WatchState,
    extended,
    start,
)
from audit.store.reading.watches import WatchReading, WatchSettings

TOO_LONG: Final = "drafts are longer than the unit; begin another watch with a larger --unit"
SeriesName = tuple[str, str | None]
"""A model, and the part of its traffic; None for all of it."""


def share(place: int) -> float:
    """The share of the false-alarm rate of the series that appeared at a place, from 0; all shares add up to 1."""
    return 1.0 / ((place + 1) * (place + 2))


@dataclass(frozen=True, slots=True)
class NamedAlarm:
    """An alarm of one series' detector; the evidence begins with the reading at `since`."""

    direction: ChangeDirection
    reference: float
    reading: WatchReading
    since: WatchReading
    alarm: WatchAlarm


@dataclass(slots=True)
class _SeriesDetectors:
    plans: dict[ChangeDirection, WatchPlan]
    states: dict[ChangeDirection, WatchState]
    looks: list[WatchReading] = field(default_factory=list)


class Detectors:
    """The detectors of all series of a watch.

    Args:
        settings: what the watch tests.
    """

    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings
        self._series: dict[SeriesName, _SeriesDetectors] = {}
        self.alarms: list[NamedAlarm] = []

    def replay(self, readings: Iterable[WatchReading]) -> None:
        """Follow stored readings, many at a time."""
        usable: dict[SeriesName, list[WatchReading]] = {}
        for reading in readings:
            # the requests of a canary are not the traffic
            if reading.counters is not None and reading.answers is None:
                self._of(reading)
                if reading.gap is None:
                    usable.setdefault((reading.model, reading.label), []).append(reading)
        for series, mine in usable.items():
            for unit, group in groupby(mine, key=self._unit):
                if unit is not None:
                    self._extend(self._series[series], list(group), unit)
        self.alarms.sort(key=lambda alarm: alarm.reading.at)

    def judged(self, reading: WatchReading) -> WatchReading:
        """The next reading with the evidence after it, or with why it is none."""
        if reading.counters is None:
            return reading
        detectors, unit = self._of(reading), self._unit(reading)
        gap = reading.gap or self._unfit(reading, unit)
        if gap is not None or not detectors.plans or unit is None:
            return replace(reading, gap=gap)
        result = self._extend(detectors, [reading], unit)
        evidence = {direction.value: state.log_evidence for direction, state in detectors.states.items()}
        # an alarm restarts its detector at 0, whose logarithm no database keeps
        kept = {name: value if math.isfinite(value) else None for name, value in evidence.items()}
        return replace(reading, fall=kept.get("fall"), rise=kept.get("rise"), alarm=result[0].value if result else None)

    def log_limit(self, reading: WatchReading) -> float | None:
        """The log evidence at which the detectors of a reading's series alarm."""
        detectors = self._series.get((reading.model, reading.label))
        return -math.log(next(iter(detectors.plans.values())).alpha) if detectors and detectors.plans else None

    def _unit(self, reading: WatchReading) -> float | None:
        unit = self._settings.unit or reading.draft_length
        return None if unit is None else float(unit)

    def _of(self, reading: WatchReading) -> _SeriesDetectors:
        series = reading.model, reading.label
        if series not in self._series:
            self._series[series] = self._fresh(len(self._series))
        return self._series[series]

    def _fresh(self, place: int) -> _SeriesDetectors:
        given = {ChangeDirection.FALL: self._settings.reference, ChangeDirection.RISE: self._settings.rise_reference}
        references = {direction: value for direction, value in given.items() if value is not None}
        alpha = self._settings.alpha * share(place) / max(len(references), 1)
        plans = {direction: WatchPlan(direction, value, 1.0, alpha) for direction, value in references.items()}
        return _SeriesDetectors(plans, {direction: start(self._settings.interval_s) for direction in plans})

    def _unfit(self, reading: WatchReading, unit: float | None) -> str | None:
        if self._settings.reference is None and self._settings.rise_reference is None:
            return None
        if unit is None:
            return "the server does not say how long a draft can be; add --unit TOKENS"
        return TOO_LONG if reading.drafts is not None and (reading.drafted or 0) > unit * reading.drafts else None

    def _extend(
        self, detectors: _SeriesDetectors, readings: Sequence[WatchReading], unit: float
    ) -> list[ChangeDirection]:
        """Extend every detector of a series; returns the directions that alarmed."""
        detectors.looks.extend(readings)
        columns = ((reading.drafted or 0, reading.accepted or 0, reading.seconds or 0.0) for reading in readings)
        looks = Looks(*np.array(list(columns), dtype=np.float64).T)
        result = []
        for direction, plan in detectors.plans.items():
            before = detectors.states[direction]
            after = extended(before, replace(plan, unit=unit), looks)
            detectors.states[direction] = after
            new = after.alarms[len(before.alarms) :]
            result += [direction] if new else []
            self.alarms += [
                NamedAlarm(direction, plan.reference, detectors.looks[alarm.look], detectors.looks[alarm.since], alarm)
                for alarm in new
            ]
        return result
