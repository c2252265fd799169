"""Benchmark results: rates and per-round ratios with intervals, as a table and as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from audit.evidence.environment import hardware
from audit.store.base.canonical import jsonable
from audit.sweep.choice import MedianInterval, median_interval, paired
from audit.sweep.sweep import TimedJob, interleaved
from tests.bench.setting import Setting

Cell = str | int | float | MedianInterval | None


@dataclass(frozen=True)
class Line:
    """One arm: its name and its figures by column, in the table's order."""

    arm: str
    figures: Mapping[str, Cell] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """One group's lines; notes say what was left out and why."""

    group: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Runs:
    """What each arm did, in the order of the rounds."""

    runs: Mapping[str, Sequence[TimedJob[Any]]]

    def rates(self, arm: str, tokens: Callable[[Any], int], spent: Callable[[Any], float] | None = None) -> list[float]:
        """Tokens per second by round; `spent` gives seconds to leave out."""
        return [tokens(each.result) / (each.seconds - (spent(each.result) if spent else 0)) for each in self.runs[arm]]

    def first(self, arm: str) -> Any:
        return self.runs[arm][0].result


def measure(jobs: Mapping[str, Callable[[], Any]], setting: Setting) -> Runs:
    runs: dict[str, list[TimedJob[Any]]] = {name: [] for name in jobs}
    for timed in interleaved(jobs, setting.rounds, setting.clock):
        runs[timed.job].append(timed)
    return Runs(runs)


def ratio(own: Sequence[float], reference: Sequence[float]) -> MedianInterval:
    """Median over rounds of own / reference."""
    return median_interval(paired(own, reference))


def rendered(table: Table) -> str:
    columns = list(dict.fromkeys(name for line in table.lines for name in line.figures))
    rows = [["arm", *columns]] + [
        [line.arm, *(_text(line.figures.get(name)) for name in columns)] for line in table.lines
    ]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns) + 1)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([f"[{table.group}]", *lines, *table.notes])


def _text(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, MedianInterval):
        return f"{_number(value.median)} ({_number(value.low)}..{_number(value.high)})"
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.3f}"


def documents(tables: Iterable[Table]) -> list[Any]:
    """As dataclasses nest; `audit.store.base.canonical.jsonable` does the rest."""
    return [{"group": table.group, "lines": _documents(table.lines), "notes": table.notes} for table in tables]


def _documents(lines: Iterable[Line]) -> list[Any]:
    return [{"arm": line.arm, **line.figures} for line in lines]


def reported(table: Table, facts: Mapping[str, Any], out: Path) -> None:
    """Print a bench's table and write it to `out` with `facts`, among them the `load` before."""
    click.echo(f"\n{rendered(table)}\n\nload before and after: {facts['load']:.1f}, {os.getloadavg()[0]:.1f}")
    out.parent.mkdir(parents=True, exist_ok=True)
    document = {**facts, "hardware": hardware(), "tables": documents([table])}
    out.write_text(json.dumps(jsonable(document), indent=2) + "\n")
