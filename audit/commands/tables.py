"""Rows on stdout: tables for people, Markdown for pages, JSON, JSON lines and CSV for programs; Parquet in a file."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click

from audit.commands import layout
from audit.store.canonical import jsonable
from audit.text.parquet import parquet_bytes
from audit.text.unsafe import inert, visible

Rows = Sequence[Sequence[Any]]
WIDE: Final = "audit.wide"
"""Key in a command's context; if set, tables have one line per row."""
PARQUET: Final = "parquet"
"""The format that is no text, so it goes to a file only."""
MARKED: Final = re.compile(r"[\\`*|\[\]]")
"""Characters that mean something in a cell of a Markdown table."""


def echo_json(value: Any) -> None:
    """Print a value as indented JSON; NaN and infinity become null."""
    click.echo(json.dumps(jsonable(value), indent=2, allow_nan=False))


def echo_rows(columns: Sequence[str], rows: Rows, form: str = "table") -> None:
    """Print rows in one of `FORMATS`."""
    FORMATS[form](columns, rows)


def save_rows(columns: Sequence[str], rows: Rows, form: str, path: Path) -> None:
    """Write rows to a file in one of `FORMATS` or as `PARQUET`; the file is complete or not there.

    Raises:
        UserError: the file cannot be written, or Parquet cannot hold the rows.
    """
    # imported late: it brings the YAML reader along
    from audit.text.staged_files import staged

    if form == PARQUET:
        content = parquet_bytes(columns, rows)
    else:
        with contextlib.redirect_stdout(io.StringIO()) as text:
            FORMATS[form](columns, rows)
        content = text.getvalue().encode("utf-8", "backslashreplace")
    with staged({path: content}):
        pass


def plain(value: Any) -> Any:
    """Convert a value from a database or a record to JSON types: bytes to hex, decimals to numbers."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return jsonable(value)


def cell(value: Any) -> str:
    """Format a value for a table: `-` for None, four significant digits of a fraction, the size of a blob."""
    if value is None:
        return "-"
    if isinstance(value, bytes | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, float | Decimal):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return visible(str(value))


def _table(columns: Sequence[str], rows: Rows) -> None:
    texts = [[cell(value) for value in row] for row in rows]
    for line in layout.lines([visible(column) for column in columns], texts, _width()):
        click.echo(line)


def _width() -> int | None:
    """Maximum table width; None if each row takes one line of any length.

    `COLUMNS` sets it everywhere, the terminal's own width only on a terminal. Output to a pipe or a file, and output
    with `--wide`, keeps one line per row, so that it can be searched by line.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(WIDE):
        return None
    if os.environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def _markdown(columns: Sequence[str], rows: Rows) -> None:
    numbers = [all(_numeric(row[index]) for row in rows) for index in range(len(columns))]
    lines = [[_escaped(column) for column in columns], ["--:" if each else "---" for each in numbers]]
    lines += [[_escaped(cell(value)) for value in row] for row in rows]
    for line in lines:
        click.echo(f"| {' | '.join(line)} |")


def _numeric(value: Any) -> bool:
    return value is None or isinstance(value, int | float | Decimal)


def _escaped(text: str) -> str:
    """Text that a Markdown table shows as it is: no cell ends early, and nothing becomes a link, code or HTML."""
    return MARKED.sub(r"\\\g<0>", visible(text)).replace("<", "&lt;")


def _json(columns: Sequence[str], rows: Rows) -> None:
    echo_json([_named(columns, row) for row in rows])


def _jsonl(columns: Sequence[str], rows: Rows) -> None:
    for row in rows:
        click.echo(json.dumps(_named(columns, row), allow_nan=False))


def _named(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    return {column: plain(value) for column, value in zip(columns, row, strict=True)}


def _csv(columns: Sequence[str], rows: Rows) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([inert(column) for column in columns])
    writer.writerows([inert(plain(value)) for value in row] for row in rows)
    click.echo(buffer.getvalue(), nl=False)


FORMATS: Final[Mapping[str, Callable[[Sequence[str], Rows], None]]] = MappingProxyType(
    {"table": _table, "markdown": _markdown, "json": _json, "jsonl": _jsonl, "csv": _csv}
)
