"""The content root of finished runs; NULL in runs that finished before.

Revision ID: 0009
Revises: 0008
Create Date: 2026-11-23
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # plain SQL: batch mode would rebuild the table and lose its triggers
    op.execute("ALTER TABLE run ADD COLUMN content_root VARCHAR(64)")


def downgrade() -> None:
    op.drop_column("run", "content_root")
