"""Rules on the watch of a live server: compared with this run, without long gaps, up to now, and without an alarm."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from audit.gate.decision import Reason, blocked, undecided
from audit.gate.facts import RunFacts, WatchedSeries, WatchFacts
from audit.gate.policy import Policy
from audit.gate.policy_parts import WatchRule
from audit.gate.waivers import moment
from audit.stats.acceptance.surveillance import ChangeDirection
from audit.store.reading.watches import WatchReading
from audit.text.durations import CLOCK_SKEW, duration

WATCHED: Final = "watched"
ROUNDING: Final = 1e-6
"""Share by which a stored reference may lie below the one that is computed again."""


def watched_reasons(facts: RunFacts, policy: Policy, now: datetime) -> Iterator[Reason]:
    """Why no live server was watched as the policy asks, and every alarm."""
    wanted = policy.parts.watched
    if wanted is None:
        return
    watches = facts.watches
    if watches is None:
        yield _lacks("watch", "a bundle holds no watches; judge the run in the store that has them")
        return
    yield from _alarms(watches, wanted)
    if not watches.series:
        server = " or ".join(wanted.urls) or f"a server compared with run {facts.run.ulid} or another of its models"
        others = f"; its {watches.others} watches are of others" if watches.others else ""
        yield _lacks("watch", f"the store has no watch of {server}{others}")
        return
    yield from _unwatched(watches, wanted, now)


def _lacks(about: str, text: str) -> Reason:
    return undecided(WATCHED, text, about=about)


def _alarms(watches: WatchFacts, wanted: WatchRule) -> Iterator[Reason]:
    """One reason for all alarms of a watch, model and direction: a fall that stays alarms again and again."""
    for series in watches.series:
        alarms = [alarm for alarm in series.alarms if not wanted.models or alarm.model in wanted.models]
        for model, direction in dict.fromkeys((alarm.model, alarm.direction) for alarm in alarms):
            moments = [alarm.at for alarm in alarms if (alarm.model, alarm.direction) == (model, direction)]
            yield _alarmed(series, f"{series.watch.settings.url} {model}", ChangeDirection(direction), moments)


def _alarmed(series: WatchedSeries, server: str, direction: ChangeDirection, moments: Sequence[datetime]) -> Reason:
    """The reason for alarms, oldest first; a waiver of it does not cover a later alarm."""
    settings, watch, last = series.watch.settings, f"watch {series.watch.id}", moment(moments[-1])
    fell = direction is ChangeDirection.FALL
    moved, rate = ("fell below", settings.reference) if fell else ("rose above", settings.rise_reference)
    count = "alarm" if len(moments) == 1 else f"{len(moments)} alarms, the last"
    text = f"{server}: acceptance {moved} {rate or 0.0:.3f}, {count} of {last} ({watch})"
    return blocked(WATCHED, text, about=f"{direction.value} {last} {watch} {server}")


def _unwatched(watches: WatchFacts, wanted: WatchRule, now: datetime) -> Iterator[Reason]:
    """Reasons for every server that the policy names; without names for the server read last, unless one is fine."""
    ordered = sorted(watches.series, key=lambda series: series.watch.settings.url)
    servers = {url: list(group) for url, group in groupby(ordered, key=lambda series: series.watch.settings.url)}
    if wanted.urls:
        for url in wanted.urls:
            yield from _of_server(url, servers.get(url, []), watches.bounds, wanted, now)
        return
    reasons = {url: list(_of_server(url, mine, watches.bounds, wanted, now)) for url, mine in servers.items()}
    if all(reasons.values()):
        yield from reasons[max(servers, key=lambda url: _last(servers[url], now))]


def _last(series: Sequence[WatchedSeries], now: datetime) -> datetime:
    """Time of the last reading, or the start of the last watch."""
    moments = [reading.at for other in series for reading in other.readings if reading.at <= now + CLOCK_SKEW]
    return max(moments, default=max(other.watch.created_at for other in series))


def _of_server(
    url: str, series: Sequence[WatchedSeries], bounds: Mapping[str, float], wanted: WatchRule, now: datetime
) -> Iterator[Reason]:
    if not series:
        yield _lacks(f"watch {url}", f"the store has no watch of {url}")
        return
    problems = {other.watch.id: _lax(other, bounds, wanted) for other in series}
    strict = [other for other in series if problems[other.watch.id] is None]
    if not strict:
        yield _lacks(f"reference {url}", f"{url}: watch {series[-1].watch.id} {problems[series[-1].watch.id]}")
        return
    seen = {reading.model for item in strict for reading in item.readings if reading.model and reading.label is None}
    for model in wanted.models or sorted(seen) or ("",):
        yield from _of_model(f"{url} {model}".rstrip(), model, strict, wanted, now)


def _lax(series: WatchedSeries, bounds: Mapping[str, float], wanted: WatchRule) -> str | None:
    """Why a watch would miss too much to count; None if it counts."""
    settings = series.watch.settings
    if settings.reference is None:
        return "compares with nothing; give it --run"
    least = min(bounds.values(), default=None)
    if least is None:
        return "cannot be compared with the run: no candidate arm of it drafted"
    least *= 1.0 - wanted.tolerance
    if settings.reference < least * (1.0 - ROUNDING):
        return f"alarms below {settings.reference:.4f}; the run's bound less {wanted.tolerance:g} is {least:.4f}"
    if settings.alpha < wanted.false_alarms:
        return f"expects {settings.alpha:g} false alarms in 30 days; the policy wants {wanted.false_alarms:g} or more"
    return None


def _of_model(
    name: str, model: str, series: Sequence[WatchedSeries], wanted: WatchRule, now: datetime
) -> Iterator[Reason]:
    judged = {other.watch.id: _judged(other, model, now) for other in series}
    if not any(judged.values()):
        yield _lacks(f"readings {name}", f"{name}: no reading of the last {wanted.days} days was judged")
        return
    usable = (reading for readings in judged.values() for reading in readings if _counts(reading, wanted))
    covered = _merged(_covered(reading, wanted, now) for reading in usable)
    age = now - max(reading.at for readings in judged.values() for reading in readings)
    if age > wanted.interval:
        text = f"the last judged reading is {_spoken(age)} old, at most {_spoken(wanted.interval)} are allowed"
        yield _lacks(f"age {name}", f"{name}: {text}")
    whole = timedelta(days=wanted.days)
    gaps = whole - sum((end - begin for begin, end in covered), timedelta())
    if gaps > whole * wanted.gaps:
        share = f"{_spoken(gaps)} of the last {wanted.days} days ({gaps / whole:.1%}) were not watched"
        yield _lacks(f"gaps {name}", f"{name}: {share}, at most {wanted.gaps:.1%} are allowed")
    units = max(_units(other, judged[other.watch.id]) for other in series)
    if units < wanted.units:
        text = f"{units:.0f} units of drafted tokens were judged, {wanted.units} are required"
        yield _lacks(f"units {name}", f"{name}: {text}")


def _judged(series: WatchedSeries, model: str, now: datetime) -> list[WatchReading]:
    return [
        reading
        for reading in series.readings
        if reading.model == model and reading.label is None and reading.gap is None and reading.at <= now + CLOCK_SKEW
    ]


def _counts(reading: WatchReading, wanted: WatchRule) -> bool:
    """True if the reading tells of all the time since the one before, and that was not too long."""
    # a restart loses what was counted before it
    return not reading.restarted and 0.0 < (reading.seconds or 0.0) <= wanted.interval.total_seconds()


def _covered(reading: WatchReading, wanted: WatchRule, now: datetime) -> tuple[datetime, datetime]:
    """Begin and end of the time whose counts were judged."""
    begin = max(reading.at - timedelta(seconds=reading.seconds or 0.0), now - timedelta(days=wanted.days))
    return begin, max(begin, min(reading.at, now))


def _merged(times: Iterator[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """The union of the times, as times that do not overlap."""
    merged: list[tuple[datetime, datetime]] = []
    for begin, end in sorted(times):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged


def _units(series: WatchedSeries, readings: Sequence[WatchReading]) -> float:
    """Drafted tokens of the readings, in units of the watch."""
    unit = series.watch.settings.unit
    return sum((reading.drafted or 0) / (unit or reading.draft_length or 1) for reading in readings)


def _spoken(span: timedelta) -> str:
    return f"{span / timedelta(days=1):.1f} days" if span >= timedelta(days=2) else duration(span.total_seconds())
