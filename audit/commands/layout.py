"""Aligned columns in a given width.

If a table is too wide, its last column wraps under itself; columns that do not fit move to an indented line of their
row.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

GAP: Final = "  "
INDENT: Final = "    "
LEAST_TEXT: Final = 40
"""Minimum width of a wrapped last column."""


def lines(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
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


def _line(indent: str, texts: Sequence[str], widths: Sequence[int], end: int | None) -> Iterator[str]:
    """One line, or several if its last text must wrap to end at column `end`."""
    head = indent + "".join(text.ljust(width) + GAP for text, width in zip(texts[:-1], widths[:-1], strict=True))
    if end is None or len(head) + len(texts[-1]) <= end:
        yield (head + texts[-1]).rstrip()
        return
    room = max(end - len(head), LEAST_TEXT)
    first, *rest = textwrap.wrap(texts[-1], room, break_on_hyphens=False)
    yield head + first
    for text in rest:
        yield " " * len(head) + text
