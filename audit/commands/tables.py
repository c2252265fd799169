"""Rows on stdout: tables for people, JSON, JSON lines and CSV for programs."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import click

from audit.commands import layout
from audit.store.canonical import jsonable
from audit.text.unsafe import inert, visible

Rows = Sequence[Sequence[Any]]
WIDE: Final = "audit.wide"
"""Key in a command's context; if set, tables have one line per row."""


def echo_json(value: Any) -> None:
    """Print a value as indented JSON; NaN and infinity become null."""
    click.echo(json.dumps(jsonable(value), indent=2, allow_nan=False))


def echo_rows(columns: Sequence[str], rows: Rows, form: str = "table") -> None:
    """Print rows in one of `FORMATS`."""
    FORMATS[form](columns, rows)


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
    {"table": _table, "json": _json, "jsonl": _jsonl, "csv": _csv}
)
