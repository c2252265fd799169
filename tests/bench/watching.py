"""What the detector of `audit watch` costs: false alarms on clean traffic, drafted tokens until a drop is found.

    python -m tests.bench.watching           # the tables of docs/statistics.md

A month has 43,200 looks of a minute. The server accepted 0.70 of its drafted tokens when it was certified; the
reference is 0.63 (tolerance 10 %); drafts have 5 tokens, a request 100 drafts. A drop begins after a clean day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import click
import numpy as np

from audit.stats.acceptance.surveillance import ChangeDirection, Looks, WatchPlan, extended, start
from tests.support.watch_traffic import (
    GAMMA,
    REQUEST,
    Traffic,
    alarmed,
    at_the_reference,
    bursty,
    differing_requests,
    dropped,
)

BEFORE: Final = 0.70
REFERENCE: Final = 0.63
UNITS: Final = {"a draft (5)": GAMMA, "a request (500)": GAMMA * REQUEST}
KINDS: Final[dict[str, Callable[[np.random.Generator], Looks]]] = {
    "at the reference, drafts accepted whole or not at all": lambda rng: at_the_reference(rng, REFERENCE),
    "bursty, swinging and drifting above the reference": lambda rng: bursty(rng, REFERENCE),
    "0.75 on average, requests differ (deviation 0.14)": differing_requests,
}
DAY: Final = 1440


def plan(unit: float) -> WatchPlan:
    """The watch of these tables."""
    return WatchPlan(ChangeDirection.FALL, REFERENCE, unit)


def months_with_alarms(unit: float, traffic: Callable[[np.random.Generator], Looks], months: int) -> int:
    """Months with an alarm."""
    return sum(alarmed(plan(unit), traffic(np.random.default_rng(seed))) for seed in range(months))


def delays(unit: float, drop: float, runs: int) -> np.ndarray:
    """Drafted tokens from the drop to the first alarm after it; a look drafts 50 tokens, or four requests."""
    found = []
    for seed in range(runs):
        traffic = Traffic(10.0 if unit == GAMMA else 4.0 * unit / GAMMA, 3 * DAY)
        looks = dropped(np.random.default_rng(seed), BEFORE, drop, traffic, DAY)
        at = next((alarm.look for alarm in extended(start(60.0), plan(unit), looks).alarms if alarm.look >= DAY), None)
        found.append(np.inf if at is None else looks.drafted[DAY : at + 1].sum())
    return np.array(found)


def false_alarm_rows(months: int) -> Iterator[str]:
    """The first table."""
    yield "| clean traffic | " + " | ".join(f"unit {name}" for name in UNITS) + " |"
    yield "|---|" + "---|" * len(UNITS)
    for name, traffic in KINDS.items():
        yield (
            f"| {name} | "
            + " | ".join(str(months_with_alarms(unit, traffic, months)) for unit in UNITS.values())
            + " |"
        )


def delay_rows(runs: int) -> Iterator[str]:
    """The second table."""
    yield "| drop | " + " | ".join(f"unit {name}: median | 99 of 100" for name in UNITS) + " |"
    yield "|---|" + "---|" * 2 * len(UNITS)
    for drop in (0.15, 0.2, 0.3, 0.5):
        cells = []
        for unit in UNITS.values():
            tokens = delays(unit, drop, runs)
            cells += [f"{np.quantile(tokens, share, method='higher'):,.0f}" for share in (0.5, 0.99)]
        yield f"| {drop:.0%} | " + " | ".join(cells) + " |"


@click.command()
@click.option("--months", default=200)
@click.option("--runs", default=200)
def main(months: int, runs: int) -> None:
    """Print both tables, each without its simulations if their number is 0."""
    click.echo("\n".join([*(false_alarm_rows(months) if months else ()), "", *(delay_rows(runs) if runs else ())]))


if __name__ == "__main__":
    main()
