"""Readings of a part of a server's traffic, and of a canary with digests of its answers.

Revision ID: 0016
Revises: 0015
Create Date: 2026-11-26
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

VIEW = """
SELECT watch.id AS watch, run.ulid AS run, watch.url, watch_reading.model, {more}watch_reading.at,
       watch_reading.seconds, watch_reading.gap, watch_reading.restarted,
       watch_reading.drafts, watch_reading.drafted, watch_reading.accepted,
       CAST(watch_reading.accepted AS DOUBLE PRECISION) / NULLIF(watch_reading.drafted, 0) AS draft_acceptance_rate,
       watch_reading.acceptance_length, watch_reading.drafts / NULLIF(watch_reading.seconds, 0) AS drafts_per_s,
       watch_reading.positions, watch_reading.requests, watch_reading.errors,
       watch_reading.latency_p50_s, watch_reading.latency_p95_s, watch_reading.latency_p99_s,
       watch.reference, watch_reading.fall, watch_reading.rise, watch_reading.alarm
FROM watch_reading
JOIN watch ON watch.id = watch_reading.watch_id
LEFT JOIN run ON run.id = watch.run_id
"""
MORE = "watch_reading.label, watch_reading.changed, "


def upgrade() -> None:
    op.execute("DROP VIEW v_watch")
    op.add_column("watch_reading", sa.Column("label", sa.Text(), nullable=True))
    op.add_column("watch_reading", sa.Column("answers", sa.Text(), nullable=True))
    op.add_column("watch_reading", sa.Column("changed", sa.Integer(), nullable=True))
    op.execute(f"CREATE VIEW v_watch AS {VIEW.format(more=MORE)}")


def downgrade() -> None:
    op.execute("DROP VIEW v_watch")
    for name in ("changed", "answers", "label"):
        op.drop_column("watch_reading", name)
    op.execute(f"CREATE VIEW v_watch AS {VIEW.format(more='')}")
