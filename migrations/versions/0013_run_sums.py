"""Sums of a run that has ended, and an index by domain.

Revision ID: 0013
Revises: 0012
Create Date: 2026-11-24
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "run_sums",
        sa.Column("run_id", KEY, sa.ForeignKey("run.id", name="fk_run_sums_run_id_run"), primary_key=True),
        sa.Column("format", sa.Integer(), nullable=False),
        sa.Column("sums", sa.Text(), nullable=False),
    )
    op.create_index("ix_request_run_id_domain_case_id", "request", ["run_id", "domain", "case_id"])


def downgrade() -> None:
    op.drop_index("ix_request_run_id_domain_case_id", "request")
    op.drop_table("run_sums")
