"""Series of a live server's counters, with the plan of each watch and a view.

Revision ID: 0014
Revises: 0013
Create Date: 2026-11-25
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations import guards

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
VIEW = """
SELECT watch.id AS watch, run.ulid AS run, watch.url, watch_reading.model, watch_reading.at, watch_reading.seconds,
       watch_reading.gap, watch_reading.restarted, watch_reading.drafts, watch_reading.drafted, watch_reading.accepted,
       CAST(watch_reading.accepted AS DOUBLE PRECISION) / NULLIF(watch_reading.drafted, 0) AS draft_acceptance_rate,
       watch_reading.acceptance_length, watch_reading.drafts / NULLIF(watch_reading.seconds, 0) AS drafts_per_s,
       watch_reading.positions, watch_reading.requests, watch_reading.errors,
       watch_reading.latency_p50_s, watch_reading.latency_p95_s, watch_reading.latency_p99_s,
       watch.reference, watch_reading.fall, watch_reading.rise, watch_reading.alarm
FROM watch_reading
JOIN watch ON watch.id = watch_reading.watch_id
LEFT JOIN run ON run.id = watch.run_id
"""


def upgrade() -> None:
    op.create_table(
        "watch",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("run.id", name="fk_watch_run_id_run"), nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("reference", sa.Double(), nullable=True),
        sa.Column("reference_from", sa.Text(), nullable=False),
        sa.Column("rise_reference", sa.Double(), nullable=True),
        sa.Column("unit", sa.Double(), nullable=True),
        sa.Column("alpha", sa.Double(), nullable=False),
        sa.Column("interval_s", sa.Double(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("ix_watch_url", "watch", ["url"])
    op.create_index("ix_watch_run_id", "watch", ["run_id"])
    op.create_table(
        "watch_reading",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("watch_id", KEY, sa.ForeignKey("watch.id", name="fk_watch_reading_watch_id_watch"), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("gap", sa.Text(), nullable=True),
        sa.Column("restarted", sa.Boolean(), nullable=False),
        sa.Column("drafts", sa.BigInteger(), nullable=True),
        sa.Column("drafted", sa.BigInteger(), nullable=True),
        sa.Column("accepted", sa.BigInteger(), nullable=True),
        sa.Column("positions", sa.Text(), nullable=True),
        sa.Column("acceptance_length", sa.Double(), nullable=True),
        sa.Column("requests", sa.BigInteger(), nullable=True),
        sa.Column("errors", sa.BigInteger(), nullable=True),
        sa.Column("latency_p50_s", sa.Double(), nullable=True),
        sa.Column("latency_p95_s", sa.Double(), nullable=True),
        sa.Column("latency_p99_s", sa.Double(), nullable=True),
        sa.Column("draft_length", sa.Integer(), nullable=True),
        sa.Column("fall", sa.Double(), nullable=True),
        sa.Column("rise", sa.Double(), nullable=True),
        sa.Column("alarm", sa.String(8), nullable=True),
        sa.Column("counters", sa.Text(), nullable=True),
    )
    op.create_index("ix_watch_reading_watch_id_model_id", "watch_reading", ["watch_id", "model", "id"])
    for table in ("watch", "watch_reading"):
        guards.guard(table)
    op.execute(f"CREATE VIEW v_watch AS {VIEW}")


def downgrade() -> None:
    op.execute("DROP VIEW v_watch")
    op.drop_table("watch_reading")
    op.drop_table("watch")
