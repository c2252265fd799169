"""Rows on stdout: tables for people, Markdown for pages, JSON, JSON lines and CSV for programs; Parquet in a file.

Aligned columns in a given width.

If a table is too wide, its last column wraps under itself; columns that do not fit move to an indented line of their
row.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click

from audit.text.markdown import table_lines
from audit.text.parquet import parquet_bytes
from audit.text.printer import Painted, echo, echo_document, echo_painted, echo_raw, width_of_stdout
from audit.text.unsafe import inert, shortened, visible

Rows = Sequence[Sequence[Any]]
WIDE: Final = "audit.wide"
"""Key in a command's context; if set, tables have one line per row."""
PARQUET: Final = "parquet"
"""The format that is no text, so it goes to a file only."""
RAW_CSV: Final = "csv --raw"
"""CSV whose cells are the stored text, formulas and control characters too."""
LONGEST_CELL: Final = 2000
"""Characters of a cell on a terminal."""
COLOURS: Final = MappingProxyType(
    {"certified": "green", "fault": "red", "inconclusive": "yellow", "+": "green", "!": "red", "?": "yellow"}
)
"""Of verdicts, and of the marks before claims."""
MARKED: Final = re.compile(r"certified|fault|inconclusive|[+!?][a-z]+( [+!?][a-z]+)*")


def echo_json(value: Any) -> None:
    """Print a value as indented JSON; NaN and infinity become null."""
    echo_document(json.dumps(_jsonable(value), indent=2, allow_nan=False))


def echo_rows(columns: Sequence[str], rows: Rows, form: str = "table") -> None:
    """Print rows in one of `FORMATS`, or as `RAW_CSV`."""
    FORMATS.get(form, _raw_csv)(columns, rows)


def echo_section(title: str, columns: Sequence[str], rows: Rows, none: str = "none") -> None:
    """Print a blank line, a title and rows, or the title with the word for no rows."""
    echo("", title + ("" if rows else f": {none}"))
    if rows:
        echo_rows(columns, rows)


def save_rows(columns: Sequence[str], rows: Rows, form: str, path: Path) -> None:
    """Write rows to a file in one of `FORMATS`, as `RAW_CSV` or `PARQUET`; the file is complete or not there.

    Raises:
        UserError: the file cannot be written, or Parquet cannot hold the rows.
    """
    # imported late: it brings the YAML reader along
    from audit.text.staged_files import write_staged

    if form == PARQUET:
        content = parquet_bytes(columns, rows)
    else:
        with contextlib.redirect_stdout(io.StringIO()) as text:
            echo_rows(columns, rows, form)
        content = text.getvalue().encode("utf-8", "backslashreplace")
    write_staged({path: content})


def plain(value: Any) -> Any:
    """Convert a value from a database or a record to JSON types: bytes to hex, decimals to numbers."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return _jsonable(value)


def cell(value: Any) -> str:
    """Format a value for a table: `-` for None, four significant digits of a fraction, the size of a blob."""
    if value is None:
        return "-"
    if isinstance(value, bytes | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, float | Decimal):
        return f"{value:.4g}"
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else visible(str(value))


def _table(columns: Sequence[str], rows: Rows) -> None:
    width = _width()
    texts = [[_short(cell(value), width) for value in row] for row in rows]
    for line in placed([visible(column) for column in columns], texts, width):
        echo_painted(_coloured(line))


def _short(text: str, width: int | None) -> str:
    """A cell of a table that wraps, cut if it would fill a screen."""
    return text if width is None else shortened(text, LONGEST_CELL)


def _coloured(line: TableLine) -> Iterator[Painted]:
    """The pieces of a line; the cells that are a verdict's word or marked claims are coloured."""
    done = 0
    for start, text in line.cells:
        for word in re.finditer(r"\S+", text) if MARKED.fullmatch(text) else ():
            yield Painted(line.text[done : start + word.start()])
            yield Painted(word[0], COLOURS.get(word[0]) or COLOURS[word[0][0]])
            done = start + word.end()
    yield Painted(line.text[done:])


def _width() -> int | None:
    """Maximum table width; None if each row takes one line of any length, as with `--wide`."""
    context = click.get_current_context(silent=True)
    return None if context is not None and context.meta.get(WIDE) else width_of_stdout()


def _markdown(columns: Sequence[str], rows: Rows) -> None:
    numbers = [
        all(isinstance(row[index], int | float | Decimal | None) for row in rows) for index in range(len(columns))
    ]
    # a document: its lines stay whole whatever the width
    echo_document("\n".join(table_lines(columns, (list(map(cell, row)) for row in rows), numbers)))


def _json(columns: Sequence[str], rows: Rows) -> None:
    echo_json([_named(columns, row) for row in rows])


def _jsonl(columns: Sequence[str], rows: Rows) -> None:
    for row in rows:
        echo_document(json.dumps(_named(columns, row), allow_nan=False))


def _named(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    return {column: plain(value) for column, value in zip(columns, row, strict=True)}


def _csv(columns: Sequence[str], rows: Rows) -> None:
    echo_document(_csv_text(columns, rows, inert))


def _raw_csv(columns: Sequence[str], rows: Rows) -> None:
    echo_raw(_csv_text(columns, rows, lambda value: value))


def _csv_text(columns: Sequence[str], rows: Rows, safe: Callable[[Any], Any]) -> str:
    """The text without its last line break, which the printer adds."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([safe(column) for column in columns])
    writer.writerows([safe(plain(value)) for value in row] for row in rows)
    return buffer.getvalue().removesuffix("\n")


FORMATS: Final[Mapping[str, Callable[[Sequence[str], Rows], None]]] = MappingProxyType(
    {"table": _table, "markdown": _markdown, "json": _json, "jsonl": _jsonl, "csv": _csv}
)


GAP: Final = "  "
INDENT: Final = "    "
LEAST_TEXT: Final = 40
"""Minimum width of a wrapped last column."""


@dataclass(frozen=True, slots=True)
class TableLine:
    """One line of a table, with the first column and the text of each cell, or part of one, that stands in it."""

    text: str
    cells: tuple[tuple[int, str], ...] = ()


def placed(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> Iterator[TableLine]:
    """The header's and the rows' lines, of at most `width` characters; None for one line per row."""
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
    yield TableLine(head + first, (*cells, (len(head), first)))
    yield from (TableLine(" " * len(head) + text, ((len(head), text),)) for text in rest)


def _jsonable(value: Any) -> Any:
    # imported late: commands without a store need no database library
    from audit.store.base.canonical import jsonable

    return jsonable(value)
