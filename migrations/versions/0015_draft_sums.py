"""Sums of a run that has ended gain those of its drafts.

`audit db upgrade` makes them again from the rows of the run, because the text of `run_sums` is JSON.

Revision ID: 0015
Revises: 0014
Create Date: 2026-11-26
"""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("DELETE FROM run_sums")


def downgrade() -> None:
    op.execute("DELETE FROM run_sums")
