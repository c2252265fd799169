"""The log of evidence and its signed checkpoints.

Revision ID: 0010
Revises: 0009
Create Date: 2026-11-23
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations import guards

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "log_entry",
        sa.Column("seq", KEY, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("leaf", sa.LargeBinary(), nullable=False),
        sa.Column("node", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "checkpoint",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.String(64), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    for table in ("log_entry", "checkpoint"):
        guards.guard(table)


def downgrade() -> None:
    op.drop_table("checkpoint")
    op.drop_table("log_entry")
