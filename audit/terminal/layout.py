"""Aligned columns in a given width.

If a table is too wide, its last column wraps under itself; columns that do not fit move to an indented line of their
row.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

GAP: Final = "  "
INDENT: Final = "    "
LEAST_TEXT: Final = 40
"""Minimum width of a wrapped last column."""


@dataclass(frozen=True, slots=True)
class TableLine:
    """One line of a table, with the first column and the text of each cell that stands in it whole."""

    text: str
    cells: tuple[tuple[int, str], ...] = ()


def lines(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """As `placed`, the texts only."""
    return (line.text for line in placed(columns, rows, width))


def placed(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> Iterator[TableLine]:
    """The header's and the rows' lines.

    Args:
        columns: names of the columns.
        rows: texts, one per column.
        width: maximum line length in characters; None for one line per row.
    """
    widths = [max(len(text) for text in column) for column in zip(columns, *rows, strict=True)]
    if width is None or sum(widths) + len(GAP) * (len(widths) - 1) <= width:
        groups, room = [range(len(widths))], None
    else:
        groups, room = _groups(widths, width)
    for row in [columns, *rows]:
        for number, group in enumerate(groups):
            indent = INDENT if number else ""
            yield from _line(indent, [row[index] for index in group], [widths[index] for index in group], room)


def _groups(widths: Sequence[int], width: int) -> tuple[list[range], int]:
    """Columns by line, and the last column that a line may use."""
    starts, used = [0], 0
    last = len(widths) - 1
    for index, need in enumerate(widths):
        wanted = min(need, LEAST_TEXT) if index == last else need
        if used and used + len(GAP) + wanted > width:
            starts.append(index)
            used = len(INDENT)
        elif used:
            used += len(GAP)
        used += need
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(widths)], strict=True)], width


def _line(indent: str, texts: Sequence[str], widths: Sequence[int], end: int | None) -> Iterator[TableLine]:
    """One line, or several if its last text must wrap to end at column `end`."""
    head, cells = indent, []
    for text, width in zip(texts[:-1], widths[:-1], strict=True):
        cells.append((len(head), text))
        head += text.ljust(width) + GAP
    if end is None or len(head) + len(texts[-1]) <= end:
        yield TableLine((head + texts[-1]).rstrip(), (*cells, (len(head), texts[-1])))
        return
    room = max(end - len(head), LEAST_TEXT)
    first, *rest = textwrap.wrap(texts[-1], room, break_on_hyphens=False)
    yield TableLine(head + first, tuple(cells))
    for text in rest:
        yield TableLine(" " * len(head) + text)
