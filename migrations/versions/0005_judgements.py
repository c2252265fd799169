"""Finished runs judged again, and the judgement of each check's result.

Revision ID: 0005
Revises: 0004
Create Date: 2026-11-23
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations import guards

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FOREIGN_KEY = "fk_check_result_judgement_id_judgement"


def upgrade() -> None:
    op.create_table(
        "judgement",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("run.id"), nullable=False),
        sa.Column("environment_id", KEY, sa.ForeignKey("environment.id"), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_judgement_run_id", "judgement", ["run_id"])
    guards.guard("judgement")
    # plain SQL: batch mode would rebuild the table and lose its triggers
    kind = "BIGINT" if op.get_context().dialect.name == "postgresql" else "INTEGER"
    op.execute(
        f"ALTER TABLE check_result ADD COLUMN judgement_id {kind} CONSTRAINT {FOREIGN_KEY} REFERENCES judgement (id)"
    )


def downgrade() -> None:
    op.drop_column("check_result", "judgement_id")
    op.drop_table("judgement")
