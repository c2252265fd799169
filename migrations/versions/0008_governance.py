"""Speculation settings of arms as columns, purpose and ticket of runs, and views for governance.

Revision ID: 0008
Revises: 0007
Create Date: 2026-11-23
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations import guards
from migrations.governance import VIEWS, listed

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
RUN_FIXED = (
    "id",
    "ulid",
    "suite_name",
    "suite_artifact_id",
    "environment_id",
    "config",
    "started_at",
    "actor",
    "code_commit",
)
REASON = ("purpose", "ticket")


def upgrade() -> None:
    op.create_table(
        "arm_speculation",
        sa.Column("arm_id", KEY, sa.ForeignKey("arm.id"), primary_key=True),
        sa.Column("speculation", sa.Boolean(), nullable=False),
        sa.Column("proposer", sa.Text(), nullable=True),
        sa.Column("proposer_version", sa.Text(), nullable=True),
        sa.Column("gamma", sa.Integer(), nullable=True),
        sa.Column("tree", sa.Text(), nullable=True),
        sa.Column("rule", sa.String(16), nullable=True),
        sa.Column("expected_equivalence", sa.String(16), nullable=True),
        sa.Column("numerics_probe_sha256", sa.String(64), nullable=True),
    )
    guards.guard("arm_speculation")
    for name in REASON:
        op.add_column("run", sa.Column(name, sa.Text(), nullable=True))
    _guard_run((*RUN_FIXED, *REASON))
    dialect = op.get_context().dialect.name
    for name, query in VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {listed(query, dialect)}")


def downgrade() -> None:
    for name in reversed(VIEWS):
        op.execute(f"DROP VIEW {name}")
    _guard_run(RUN_FIXED)
    for name in REASON:
        op.drop_column("run", name)
    op.drop_table("arm_speculation")


def _guard_run(columns: tuple[str, ...]) -> None:
    """The triggers of `run` again, with other fixed columns."""
    guards.unguard("run")
    guards.guard_columns("run", columns)
