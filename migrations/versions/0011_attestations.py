"""Signed statements, and registrations of suites and policies before a run.

Revision ID: 0011
Revises: 0010
Create Date: 2026-11-24
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations import guards

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "attestation",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("run.id", name="fk_attestation_run_id_run"), nullable=True),
        sa.Column("predicate_type", sa.Text(), nullable=False),
        sa.Column("payload_sha256", sa.String(64), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.Column("subjects", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_attestation_run_id", "attestation", ["run_id"])
    op.create_index("ix_attestation_payload_sha256", "attestation", ["payload_sha256"])
    op.create_table(
        "registration",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("suite_name", sa.Text(), nullable=False),
        sa.Column("suite_sha256", sa.String(64), nullable=False),
        sa.Column("policy_name", sa.Text(), nullable=False),
        sa.Column("policy_sha256", sa.String(64), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_registration_suite_sha256", "registration", ["suite_sha256"])
    for table in ("attestation", "registration"):
        guards.guard(table)


def downgrade() -> None:
    op.drop_table("registration")
    op.drop_table("attestation")
