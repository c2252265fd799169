"""The picture of what the checks cost: seconds and memory by tokens, both axes logarithmic, readable on white and dark.

`python -m tests.bench battery --picture docs/pictures` writes it beside its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.sax.saxutils import escape

from tests.bench.svg import COLOURS, INK, Curve

WIDTH, HEIGHT, TOP, BOTTOM = 760, 344, 44, 246
TITLE: Final = "The standard checks of one arm, by tokens"


@dataclass(frozen=True)
class Panel:
    """One drawing of the picture between `left` and `right`."""

    title: str
    left: float
    right: float
    curves: tuple[Curve, ...]

    def x(self, tokens: float) -> float:
        """The place of a number of tokens."""
        low, high = self.decades(0)
        return round(self.left + (self.right - self.left) * (math.log10(tokens) - low) / (high - low), 1)

    def y(self, value: float) -> float:
        """The place of a value."""
        low, high = self.decades(1)
        return round(BOTTOM - (BOTTOM - TOP) * (math.log10(value) - low) / (high - low), 1)

    def decades(self, axis: int) -> tuple[int, int]:
        """The powers of ten around all points."""
        values = [point[axis] for curve in self.curves for point in curve.points]
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return low, max(high, low + 1)


def drawn(sizes: Sequence[Mapping[str, Any]]) -> str:
    """The picture of the sizes, as `tests.bench.battery.Size` gives them."""
    seconds, memory = _curves(sizes, "seconds"), _curves(sizes, "peak_mib")
    panels = (Panel("seconds", 60, 350, seconds), Panel("peak memory, MiB", 440, 730, memory))
    repeated = [each for each in sizes if each["distinct"] < each["tokens"]]
    most = max(each["distinct"] for each in sizes)
    below = f"above {most:,} tokens requests repeat" if repeated else "all requests differ"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(TITLE)}</title>",
        f'<text x="60" y="20" font-size="14">{escape(TITLE)}</text>',
        *(line for panel in panels for line in _panel(panel)),
        *_legend([curve.name for curve in seconds]),
        f'<text x="730" y="{HEIGHT - 8}" font-size="11" text-anchor="end">{escape(below)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _curves(sizes: Sequence[Mapping[str, Any]], key: str) -> tuple[Curve, ...]:
    """A curve for each length of requests and number of processes."""
    points: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for each in sizes:
        points.setdefault((each["length"], each["processes"]), []).append((each["tokens"], each[key]))
    return tuple(Curve(_name(*kind), tuple(found)) for kind, found in sorted(points.items()))


def _name(length: int, processes: int) -> str:
    return f"{length:,} a request, {'one process' if processes == 1 else f'{processes} processes'}"


def _panel(panel: Panel) -> Iterator[str]:
    yield f'<text x="{panel.left}" y="{TOP - 8}" font-size="11">{escape(panel.title)}</text>'
    low, high = panel.decades(1)
    for power in range(low, high + 1):
        y = panel.y(10.0**power)
        yield f'<path d="M{panel.left} {y}H{panel.right}" stroke="{INK}" stroke-opacity="0.4"/>'
        yield f'<text x="{panel.left - 6}" y="{y + 4}" text-anchor="end" font-size="11">{10.0**power:,g}</text>'
    low, high = panel.decades(0)
    for power in range(low, high + 1):
        x = panel.x(10.0**power)
        yield f'<path d="M{x} {BOTTOM}v4" stroke="{INK}"/>'
        yield f'<text x="{x}" y="{BOTTOM + 16}" text-anchor="middle" font-size="11">{_short(10**power)}</text>'
    middle = (panel.left + panel.right) / 2
    yield f'<text x="{middle:g}" y="{BOTTOM + 31}" text-anchor="middle" font-size="11">tokens</text>'
    for curve, colour in zip(panel.curves, COLOURS, strict=False):
        places = [(panel.x(tokens), panel.y(value)) for tokens, value in curve.points]
        path = "M" + "L".join(f"{x} {y}" for x, y in places)
        yield f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places)


def _short(tokens: int) -> str:
    return f"{tokens // 10**6} M" if tokens >= 10**6 else f"{tokens // 1000} k" if tokens >= 1000 else str(tokens)


def _legend(names: Sequence[str]) -> Iterator[str]:
    for index, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        x, y = 40 + 180 * index, HEIGHT - 36
        yield f'<path d="M{x} {y}h20" stroke="{colour}" stroke-width="2"/>'
        yield f'<text x="{x + 26}" y="{y + 4}" font-size="11">{escape(name)}</text>'
