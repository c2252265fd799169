"""The draft version of each step, for draft models that learn while serving.

Revision ID: 0002
Revises: 0001
Create Date: 2026-11-21
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

VIEW = """
SELECT run, arm, arm_kind, draft_version, draft_sha256, n_requests, n_steps, n_drafted, n_accepted,
       CAST(n_accepted AS DOUBLE PRECISION) / NULLIF(n_drafted, 0) AS draft_acceptance_rate
FROM (
  SELECT v_request.run, v_request.arm, v_request.arm_kind, decode_step.draft_version, decode_step.draft_sha256,
         COUNT(DISTINCT decode_step.request_id) AS n_requests, COUNT(*) AS n_steps,
         CAST(SUM(decode_step.n_drafted) AS BIGINT) AS n_drafted,
         CAST(SUM(decode_step.n_accepted) AS BIGINT) AS n_accepted
  FROM decode_step JOIN v_request ON v_request.request_id = decode_step.request_id
  WHERE decode_step.draft_version IS NOT NULL
  GROUP BY v_request.run, v_request.arm, v_request.arm_kind, decode_step.draft_version, decode_step.draft_sha256
) AS sums
"""


def upgrade() -> None:
    # plain ALTER statements: batch mode would rebuild the table and lose its triggers
    op.add_column("decode_step", sa.Column("draft_version", sa.Integer(), nullable=True))
    op.add_column("decode_step", sa.Column("draft_sha256", sa.String(64), nullable=True))
    op.execute(f"CREATE VIEW v_draft_version AS {VIEW}")


def downgrade() -> None:
    op.execute("DROP VIEW v_draft_version")
    op.drop_column("decode_step", "draft_sha256")
    op.drop_column("decode_step", "draft_version")
