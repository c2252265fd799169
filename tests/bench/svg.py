"""Power curves as a small SVG picture, readable on white and on dark. Knows nothing about checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 680, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 420, 34, 246
COLOURS = ("#3b8fd6", "#e07b26", "#2fa36b", "#b765d0", "#c94f5d")
INK, CLEAN = "#7d8590", "#7d8590"
"""Greys in the middle, so that no background has to be known."""


@dataclass(frozen=True)
class Curve:
    """Points (tokens, share) in order; a clean arm's is drawn dashed."""

    name: str
    points: tuple[tuple[float, float], ...]
    clean: bool = False


def chart(title: str, curves: Sequence[Curve], below: str) -> str:
    """Share by tokens on a logarithmic axis, one line per curve, a legend at the right, a line of text below."""
    xs = [x for curve in curves for x, _ in curve.points]
    ticks = [2**power for power in range(math.floor(math.log2(min(xs))), math.ceil(math.log2(max(xs))) + 1)]
    ticks = ticks if len(ticks) > 1 else [ticks[0], 2 * ticks[0]]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        *_axes(ticks),
        *(line for index, curve in enumerate(curves) for line in _drawn(curve, index, ticks)),
        f'<text x="{LEFT}" y="{HEIGHT - 8}" font-size="11">{escape(below)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(ticks: Sequence[int]) -> list[str]:
    lines = []
    for share in (0, 0.5, 0.9, 1):
        y = _y(share)
        dash = "" if share in (0, 1) else ' stroke-dasharray="2 4"'
        lines += [
            f'<path d="M{LEFT} {y}H{RIGHT}" stroke="{INK}" stroke-opacity="0.5"{dash}/>',
            f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{share:g}</text>',
        ]
    for tick in ticks:
        x = _x(tick, ticks)
        lines += [
            f'<path d="M{x} {BOTTOM}v4" stroke="{INK}"/>',
            f'<text x="{x}" y="{BOTTOM + 16}" text-anchor="middle" font-size="11">{tick}</text>',
        ]
    middle = (LEFT + RIGHT) / 2
    return [*lines, f'<text x="{middle:g}" y="{BOTTOM + 31}" text-anchor="middle" font-size="11">tokens</text>']


def _drawn(curve: Curve, index: int, ticks: Sequence[int]) -> list[str]:
    colour, dash = (CLEAN, ' stroke-dasharray="5 4"') if curve.clean else (COLOURS[index % len(COLOURS)], "")
    places = [(_x(x, ticks), _y(share)) for x, share in curve.points]
    path = "M" + "L".join(f"{x} {y}" for x, y in places)
    y = TOP + 16 + 20 * index
    return [
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>',
        *(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places),
        f'<path d="M{RIGHT + 14} {y - 4}h20" stroke="{colour}" stroke-width="2"{dash}/>',
        f'<text x="{RIGHT + 40}" y="{y}" font-size="11">{escape(curve.name)}</text>',
    ]


def _x(tokens: float, ticks: Sequence[int]) -> float:
    low, high = math.log2(ticks[0]), math.log2(ticks[-1])
    return round(LEFT + (RIGHT - LEFT) * (math.log2(tokens) - low) / (high - low), 1)


def _y(share: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * share, 1)
