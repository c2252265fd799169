"""Changes rows of an SQLite store past its facade: values, JSON documents, blobs, whole rows."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from tests.fuzz.edits import BYTES, Edit, edited_bytes, edited_tree

KEEP: Final = ("alembic_version", "sqlite_sequence")


def edit_rows(store: Path, edits: tuple[Edit, ...], only: str | None = None) -> None:
    """Apply each edit to a place of the store; what the database refuses stays as it was."""
    with closing(sqlite3.connect(store)) as database:
        guards = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            database.execute(f'DROP TRIGGER "{name}"')
        tables = [only] if only else _tables(database)
        for edit in edits:
            with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                _edit(database, tables[edit.at % len(tables)], edit)
        for _, sql in guards:
            database.execute(sql)
        database.commit()


def _tables(database: sqlite3.Connection) -> list[str]:
    names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for (name,) in names if name not in KEEP]


def _edit(database: sqlite3.Connection, table: str, edit: Edit) -> None:
    rows = [row for (row,) in database.execute(f"SELECT rowid FROM {table} ORDER BY rowid")]
    columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    if not rows:
        return
    row, column = rows[edit.to % len(rows)], columns[(edit.at // 7 + edit.to) % len(columns)]
    if edit.op == "delete":
        database.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))
        return
    (before,) = database.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (row,)).fetchone()
    database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (_other(before, edit), row))


def _other(before: Any, edit: Edit) -> Any:
    if isinstance(before, bytes) or edit.op in BYTES:
        raw = before if isinstance(before, bytes) else str(before).encode()
        changed = edited_bytes(raw, (edit,)) if edit.op in BYTES else raw[::-1]
        return changed if isinstance(before, bytes) else changed.decode("utf-8", "replace")
    with suppress(ValueError, TypeError):
        document = json.loads(before)
        if isinstance(document, dict | list):
            return json.dumps(edited_tree(document, (edit,)))
    return edit.value if isinstance(edit.value, str | int | float | None) else json.dumps(edit.value)
