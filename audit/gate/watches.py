"""Reads what the store says of live servers: series of the watches of a run's models, and every alarm in them.

An alarm counts if the watch stored it, or if the detectors raise it over the stored series: an edited column of alarms
hides nothing, even where nobody checks the log.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from audit.errors import UserError
from audit.gate.facts import RunFacts, SeriesAlarm, WatchedSeries, WatchFacts
from audit.gate.policy_parts import WatchRule
from audit.gate.rules.run import used_artifacts
from audit.store import Store, StoredArm
from audit.store.reading.watches import StoredWatch
from audit.watch.detect import Detectors
from audit.watch.reference import lower_bound

NO_MODELS: Final = ("suite", "policy")
"""Kinds of artifacts that are no models."""


def read_watches(store: Store, facts: RunFacts, wanted: WatchRule, now: datetime) -> WatchFacts:
    """The watches that may count for a run: those of the named servers, else those compared with the run's models."""
    since, watches = now - timedelta(days=wanted.days), store.watches.all()
    models = _models(facts)

    def counts(watch: StoredWatch) -> bool:
        if wanted.urls:
            return watch.settings.url in wanted.urls
        return watch.settings.run is not None and _same(store, watch.settings.run, facts, models)

    counting = [watch for watch in watches if counts(watch)]
    series = tuple(_series(store, watch, since) for watch in counting)
    return WatchFacts(_bounds(store, facts), series, len(watches) - len(counting))


def _same(store: Store, run: str, facts: RunFacts, models: frozenset[tuple[str, str]]) -> bool:
    """True for the run itself and for another one of the same models."""
    if run == facts.run.ulid:
        return True
    return bool(models) and _models(RunFacts(store.load_run(run), ())) == models


def _models(facts: RunFacts) -> frozenset[tuple[str, str]]:
    """Role and digest of every model."""
    return frozenset((ref.role, ref.sha256) for ref in used_artifacts(facts) if ref.kind not in NO_MODELS)


def _bounds(store: Store, facts: RunFacts) -> dict[str, float]:
    return {arm.name: _bound(store, facts, arm) for arm in facts.candidates if arm.counts.drafted}


def _bound(store: Store, facts: RunFacts, arm: StoredArm) -> float:
    """The lower bound that `audit watch --run` takes; the plain rate, which is higher, where there is none."""
    try:
        return lower_bound(store, facts.run.ulid, arm, facts.checks).rate
    except UserError:
        return (arm.counts.accepted or 0) / (arm.counts.drafted or 1)


def _series(store: Store, watch: StoredWatch, since: datetime) -> WatchedSeries:
    readings, detectors = store.watches.readings(watch.id), Detectors(watch.settings)
    detectors.replay(readings)
    again = {SeriesAlarm(alarm.reading.model, alarm.direction.value, alarm.reading.at) for alarm in detectors.alarms}
    stored = {
        SeriesAlarm(reading.model, reading.alarm, reading.at) for reading in readings if reading.alarm is not None
    }

    def recent(at: datetime) -> bool:
        return at >= since

    return WatchedSeries(
        watch,
        tuple(reading for reading in readings if recent(reading.at)),
        tuple(sorted((item for item in again | stored if recent(item.at)), key=lambda item: item.at)),
    )
