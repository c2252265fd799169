"""Readings and alarms of a watch as lines for people and as JSON for programs."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from audit.store.reading.watches import StoredWatch, WatchReading
from audit.watch.detect import Detectors, NamedAlarm

DAYS: Final = (
    *("day", "model", "readings", "gaps", "restarts", "drafts", "drafted", "accepted", "length", "p95 s", "alarms"),
)


def line(reading: WatchReading, limit: float | None) -> str:
    """One reading in one line."""
    head = f"{reading.at:%Y-%m-%d %H:%M:%S}  {_series(reading)}"
    if reading.gap is not None:
        return "; ".join([f"{head}  no evidence: {reading.gap}", *_changes(reading)])
    rate = f"{reading.accepted / reading.drafted:.3f}" if reading.drafted and reading.accepted is not None else "-"
    length = "-" if reading.acceptance_length is None else f"{reading.acceptance_length:.2f}"
    parts = [f"{reading.accepted} of {reading.drafted} drafted tokens accepted ({rate}), acceptance length {length}"]
    if reading.latency_p95_s is not None:
        parts.append(f"P95 {reading.latency_p95_s:.2f} s")
    if limit is not None and reading.fall is not None:
        parts.append(f"evidence of a fall {reading.fall:.1f} of {limit:.1f}")
    if reading.restarted:
        parts.append("counters restarted")
    parts += _changes(reading)
    return f"{head}  {'; '.join(parts)}"


def _series(reading: WatchReading) -> str:
    return " ".join(filter(None, (reading.model or "-", reading.label)))


def _changes(reading: WatchReading) -> list[str]:
    """How many answers of a canary are not those that were seen first."""
    if reading.changed is None or reading.answers is None:
        return []
    count = len(json.loads(reading.answers))
    return [f"{reading.changed} of {count} answers changed" if reading.changed else f"{count} answers unchanged"]


def alarm_line(alarm: NamedAlarm) -> str:
    """One alarm in one line."""
    verb, side = ("fell", "below") if alarm.direction.value == "fall" else ("rose", "above")
    what = _series(alarm.reading) if alarm.reading.model else "the server"
    return (
        f"ALARM {what}: acceptance {verb} {side} {alarm.reference:.3f}, "
        f"to about {alarm.alarm.rate:.3f}, since about {alarm.since.at:%Y-%m-%d %H:%M:%S} UTC"
    )


def alarm_document(watch: StoredWatch, alarm: NamedAlarm) -> dict[str, Any]:
    """An alarm as JSON."""
    return {
        "event": "acceptance_alarm",
        "watch": watch.id,
        "url": watch.settings.url,
        "run": watch.settings.run,
        "model": alarm.reading.model,
        "part": alarm.reading.label,
        "direction": alarm.direction.value,
        "reference": alarm.reference,
        "leading_rate": alarm.alarm.rate,
        "since": alarm.since.at.isoformat(),
        "at": alarm.reading.at.isoformat(),
        "false_alarms_per_30_days": watch.settings.alpha,
        "text": alarm_line(alarm),
    }


def reading_document(reading: WatchReading) -> dict[str, Any]:
    """A reading as JSON, without the raw counters and the digests of answers."""
    values = asdict(reading)
    del values["counters"], values["answers"]
    return {**values, "at": reading.at.isoformat()}


def days(readings: Sequence[WatchReading]) -> Iterator[tuple[Any, ...]]:
    """Rows of `DAYS`: a line per day and model, oldest first."""
    ordered = sorted(readings, key=lambda item: (item.at.date(), _series(item)))
    for (day, series), group in groupby(ordered, key=lambda item: (item.at.date(), _series(item))):
        yield (day.isoformat(), series, *_sums(list(group)))


def _sums(rows: Sequence[WatchReading]) -> tuple[Any, ...]:
    used = [row for row in rows if row.gap is None]
    drafts, drafted, accepted = (
        sum(getattr(row, name) or 0 for row in used) for name in ("drafts", "drafted", "accepted")
    )
    latencies = [row.latency_p95_s for row in used if row.latency_p95_s is not None]
    return (
        len(rows),
        len(rows) - len(used),
        sum(row.restarted for row in rows),
        drafts,
        drafted,
        accepted / drafted if drafted else None,
        1.0 + accepted / drafts if drafts else None,
        max(latencies, default=None),
        sum(row.alarm is not None for row in rows),
    )


GAUGES: Final = {
    "acceptance": "Accepted per drafted token in the last reading.",
    "acceptance_length": "Tokens per step with a draft in the last reading.",
    "reference": "Rate below which acceptance has fallen.",
    "log_evidence": "Log evidence of the detector of a fall.",
    "log_limit": "Log evidence at which it alarms.",
    "gap": "1 if the last reading is no evidence.",
    "last_reading_timestamp_seconds": "Time of the last reading.",
}
PART_GAUGES: Final = {
    "part_acceptance": "Accepted per drafted token in the last reading of a part of the traffic.",
    "part_log_evidence": "Log evidence of the part's detector of a fall.",
    "part_gap": "1 if the last reading of the part is no evidence.",
    "canary_changed": "Canary answers that are not those that were seen first.",
}


def textfile(watch: StoredWatch, readings: Sequence[WatchReading], detectors: Detectors) -> str:
    """Gauges of the last look in Prometheus' text format, for node_exporter's textfile collector."""
    lines = []
    rows = {reading.model: _gauges(watch, reading, detectors) for reading in readings if reading.label is None}
    for name, words in GAUGES.items():
        lines += [f"# HELP specaudit_watch_{name} {words}", f"# TYPE specaudit_watch_{name} gauge"]
        for model, values in rows.items():
            value = values[name]
            if value is not None and math.isfinite(value):
                lines.append(f"specaudit_watch_{name}{_labels(watch, model)} {value!r}")
    total = "specaudit_watch_alarms_total"
    lines += [f"# HELP {total} Alarms since the watch began.", f"# TYPE {total} counter"]
    for model in rows:
        count = sum(alarm.reading.model == model and alarm.reading.label is None for alarm in detectors.alarms)
        lines.append(f"{total}{_labels(watch, model)} {count}")
    return "\n".join([*lines, *_parts(watch, readings)]) + "\n"


def _parts(watch: StoredWatch, readings: Sequence[WatchReading]) -> Iterator[str]:
    """Gauges of the parts of the traffic, which have the model's names and a label."""
    labelled = [reading for reading in readings if reading.label is not None]
    for name, words in PART_GAUGES.items():
        values = [(item, _part(item)[name]) for item in labelled]
        known = [(item, value) for item, value in values if value is not None]
        if known:
            yield from (f"# HELP specaudit_watch_{name} {words}", f"# TYPE specaudit_watch_{name} gauge")
        for one, value in known:
            yield f"specaudit_watch_{name}{_labels(watch, one.model, one.label)} {value!r}"


def _part(reading: WatchReading) -> dict[str, float | None]:
    return {
        "part_acceptance": _acceptance(reading),
        "part_log_evidence": reading.fall,
        "part_gap": float(reading.gap is not None),
        "canary_changed": reading.changed,
    }


def _acceptance(reading: WatchReading) -> float | None:
    drafted, accepted = reading.drafted, reading.accepted
    return accepted / drafted if drafted and accepted is not None else None


def _gauges(watch: StoredWatch, reading: WatchReading, detectors: Detectors) -> dict[str, float | None]:
    return {
        "acceptance": _acceptance(reading),
        "acceptance_length": reading.acceptance_length,
        "reference": watch.settings.reference,
        "log_evidence": reading.fall,
        "log_limit": detectors.log_limit(reading),
        "gap": float(reading.gap is not None),
        "last_reading_timestamp_seconds": reading.at.timestamp(),
    }


def _labels(watch: StoredWatch, model: str, label: str | None = None) -> str:
    pairs = {"url": watch.settings.url, "model_name": model} | ({"label": label} if label else {})
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
