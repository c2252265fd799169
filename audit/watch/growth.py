"""Growth of the counters between two readings; restarts and unusable readings."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from audit.store.reading.watches import WatchReading
from engine.backends.openai.server_counters import ServerCounters, latency

K = TypeVar("K", int, str)
PLAIN: Final = ("drafts", "drafted", "accepted", "requests", "errors")
FIRST: Final = "the first reading: nothing to compare with"
GAUGES: Final = (
    "the server counts no drafted and accepted tokens and does not tell how long a draft is; add --unit TOKENS"
)
OFF: Final = "the server reports no speculation counters, or speculation is off"
TORN: Final = "more tokens accepted than drafted: the page is not of one moment"
NO_CLOCK: Final = "no time passed since the reading before"


def restarted(before: ServerCounters, now: ServerCounters) -> bool:
    """True if a counter fell or disappeared, or another process answers."""
    fell = any(
        getattr(before, name) is not None and (getattr(now, name) is None or getattr(now, name) < getattr(before, name))
        for name in PLAIN
    )
    fell = fell or _fell(before.positions, now.positions) or _fell(before.latencies, now.latencies)
    known = before.started is not None and now.started is not None
    return fell or (known and before.started != now.started)


def _fell(before: Mapping[K, float], now: Mapping[K, float]) -> bool:
    return any(now.get(key, 0.0) < value for key, value in before.items())


def reading(
    model: str, at: datetime, now: ServerCounters, before: ServerCounters | None, since: datetime
) -> WatchReading:
    """The reading of one model, by the server's name of it.

    `before` are the counters of the reading before, at `since`; None in the first one.
    """
    if before is None:
        return WatchReading(
            model, at, gap=_uncounted(now) or FIRST, draft_length=now.draft_length, counters=now.to_json()
        )
    again = restarted(before, now)
    old = ServerCounters() if again else before
    grown: dict[str, Any] = {name: _difference(getattr(now, name), getattr(old, name)) for name in PLAIN}
    positions = _differences(now.positions, old.positions)
    latencies = _differences(now.latencies, old.latencies)
    drafts, accepted = grown["drafts"], grown["accepted"]
    return WatchReading(
        model,
        at,
        seconds=(at - since).total_seconds(),
        gap=_gap(now, grown, (at - since).total_seconds()),
        restarted=again,
        **grown,
        positions=json.dumps([positions[place] for place in sorted(positions)]) if positions else None,
        acceptance_length=1.0 + accepted / drafts if drafts and accepted is not None else now.length,
        latency_p50_s=latency(latencies, 0.5),
        latency_p95_s=latency(latencies, 0.95),
        latency_p99_s=latency(latencies, 0.99),
        draft_length=now.draft_length,
        counters=now.to_json(),
    )


def _difference(now: float | None, before: float | None) -> int | None:
    return None if now is None else round(now - (before or 0.0))


def _differences(now: Mapping[K, float], before: Mapping[K, float]) -> dict[K, int]:
    return {key: round(value - before.get(key, 0.0)) for key, value in now.items()}


def _uncounted(now: ServerCounters) -> str | None:
    """Why the counters are no sums of drafts; None if they are."""
    if now.counts_drafts:
        return None
    return GAUGES if now.length is not None else OFF


def _gap(now: ServerCounters, grown: Mapping[str, int | None], seconds: float) -> str | None:
    drafted, accepted = grown["drafted"], grown["accepted"]
    if drafted is None or accepted is None or _uncounted(now):
        return _uncounted(now)
    if seconds <= 0:
        return NO_CLOCK
    return TORN if accepted > drafted else None
