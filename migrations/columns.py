"""Columns of tables, as migrations write them."""

from typing import Any

import sqlalchemy as sa

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def column(name: str, kind: sa.types.TypeEngine[Any], *, key: bool = False, **more: Any) -> sa.Column[Any]:
    """A column that is not NULL unless `more` says so."""
    return sa.Column(name, kind, primary_key=key, **{"nullable": False, **more})


def identity() -> sa.Column[Any]:
    """The number of a row."""
    return sa.Column("id", KEY, primary_key=True)


def link(table: str, *, name: str | None = None, key: bool = False, nullable: bool = False) -> sa.Column[Any]:
    """The number of a row of another table."""
    target = sa.ForeignKey(f"{table}.id")
    return sa.Column(name or f"{table}_id", KEY, target, primary_key=key, nullable=nullable)


def text(name: str, length: int | None = None, **more: Any) -> sa.Column[Any]:
    """A text, of limited length if one is given."""
    return column(name, sa.String(length) if length else sa.Text(), **more)


def json(name: str, **more: Any) -> sa.Column[Any]:
    """A JSON value."""
    return column(name, sa.JSON(), **more)


def whole(name: str, *, big: bool = False, **more: Any) -> sa.Column[Any]:
    """A whole number."""
    return column(name, sa.BigInteger() if big else sa.Integer(), **more)


def time(name: str, **more: Any) -> sa.Column[Any]:
    """A moment."""
    return column(name, sa.DateTime(timezone=True), **more)
