"""Events of requests beside their tokens: grammars, tool calls, filters, with a view of each.

Revision ID: 0012
Revises: 0011
Create Date: 2026-11-24
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations import guards

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PLACE = """
SELECT run.ulid AS run, arm.name AS arm, arm.kind AS arm_kind, request.domain, request.case_id, request.sample,
       {columns}, request.id AS request_id
FROM {table}
JOIN request ON request.id = {table}.request_id
JOIN arm ON arm.id = request.arm_id
JOIN run ON run.id = request.run_id
"""
COLUMNS = {
    "constraint_event": ("library", "version", "refused_token", "whole", "not_read"),
    "tool_event": ("call", "name", "arguments", "first_token", "end_token", "problem"),
    "safety_event": (
        *("event", "component", "version", "ruleset_sha256", "side", "action", "category", "token"),
        *("first_character", "end_character"),
    ),
}


def upgrade() -> None:
    op.create_table(
        "constraint_event",
        _request("constraint_event"),
        sa.Column("library", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("refused_token", sa.Integer(), nullable=True),
        sa.Column("whole", sa.Boolean(), nullable=True),
        sa.Column("not_read", sa.Text(), nullable=True),
    )
    op.create_table(
        "tool_event",
        _request("tool_event"),
        sa.Column("call", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("arguments", sa.Text(), nullable=True),
        sa.Column("first_token", sa.Integer(), nullable=True),
        sa.Column("end_token", sa.Integer(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
    )
    op.create_table(
        "safety_event",
        _request("safety_event"),
        sa.Column("event", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("component", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("ruleset_sha256", sa.String(64), nullable=False),
        sa.Column("side", sa.String(16), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("category", sa.Text(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=True),
        sa.Column("first_character", sa.Integer(), nullable=False),
        sa.Column("end_character", sa.Integer(), nullable=False),
    )
    guards.guard("constraint_event")
    guards.guard_erasable("tool_event", "request_id", "content")
    guards.guard("safety_event")
    for table, columns in COLUMNS.items():
        named = ", ".join(f"{table}.{name}" for name in columns)
        op.execute(f"CREATE VIEW v_{table} AS {PLACE.format(columns=named, table=table)}")


def _request(table: str) -> sa.Column[Any]:
    return sa.Column(
        "request_id", KEY, sa.ForeignKey("request.id", name=f"fk_{table}_request_id_request"), primary_key=True
    )


def downgrade() -> None:
    for table in reversed(COLUMNS):
        op.execute(f"DROP VIEW v_{table}")
        op.drop_table(table)
