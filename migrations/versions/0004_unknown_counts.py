"""Steps and drafts of endpoints are NULL in the views: their records have one step per token and count none.

Revision ID: 0004
Revises: 0003
Create Date: 2026-11-23
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

VIEW = """
SELECT run.ulid AS run, run.suite_name AS suite, arm.name AS arm, arm.kind AS arm_kind,
       request.case_id, request.sample, request.domain, request.seed, request.n_prompt, request.n_output,
       {counts}, request.finish_reason, request.latency_us,
       request.sampling_sha256, request.output_sha256, request.text, request.record_hash,
       request.id AS request_id, token_trace.sha256 AS trace_sha256
FROM request
JOIN arm ON arm.id = request.arm_id
JOIN run ON run.id = request.run_id
LEFT JOIN token_trace ON token_trace.request_id = request.id
"""
COUNTS = ("n_steps", "n_drafted", "n_accepted")
AS_STORED = "request.{name}"
# endpoints state this key, and only they; -> gives NULL for an absent key only, not for a null
WHERE_COUNTED = "CASE WHEN arm.effective -> 'server_counters' IS NULL THEN request.{name} END AS {name}"


def upgrade() -> None:
    _replace(WHERE_COUNTED)


def downgrade() -> None:
    _replace(AS_STORED)


def _replace(count: str) -> None:
    """The columns stay, so the views that read v_request stay too."""
    select = VIEW.format(counts=", ".join(count.format(name=name) for name in COUNTS))
    if op.get_context().dialect.name == "postgresql":
        op.execute(f"CREATE OR REPLACE VIEW v_request AS {select}")
        return
    # SQLite has no OR REPLACE, and looks at the views behind a view only when they are read
    op.execute("DROP VIEW v_request")
    op.execute(f"CREATE VIEW v_request AS {select}")
