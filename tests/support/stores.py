"""Direct access to a store's database for tampering tests."""

from __future__ import annotations

import sqlite3

from audit.store import Store


def sql(store: Store, query: str) -> list[tuple]:
    with sqlite3.connect(store.url.removeprefix("sqlite:///")) as connection:
        return connection.execute(query).fetchall()


def tamper(store: Store, table: str, change: str, where: str) -> None:
    """Tamper as the owner of the file could: drop the trigger, change the row."""
    with sqlite3.connect(store.url.removeprefix("sqlite:///")) as connection:
        connection.execute(f"DROP TRIGGER IF EXISTS guard_{table}_update")
        assert connection.execute(f"UPDATE {table} SET {change} WHERE {where}").rowcount > 0
