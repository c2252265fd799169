"""Content apart from the evidence: prompts, outputs and findings in rows that may be erased.

Requests of older stores keep their record hash of version 1, which covers the content itself.

Revision ID: 0006
Revises: 0005
Create Date: 2026-11-23
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError

from migrations import guards

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
REQUEST = """
SELECT run.ulid AS run, run.suite_name AS suite, arm.name AS arm, arm.kind AS arm_kind,
       request.case_id, request.sample, request.domain, request.seed, request.n_prompt, request.n_output,
       {counts}, request.finish_reason, request.latency_us,
       request.sampling_sha256, {content}.output_sha256, {content}.text, request.record_hash,
       request.id AS request_id, token_trace.sha256 AS trace_sha256
FROM request
JOIN arm ON arm.id = request.arm_id
JOIN run ON run.id = request.run_id
LEFT JOIN token_trace ON token_trace.request_id = request.id
{join}
"""
COUNTS = ", ".join(
    f"CASE WHEN arm.effective -> 'server_counters' IS NULL THEN request.{name} END AS {name}"
    for name in ("n_steps", "n_drafted", "n_accepted")
)
ACCEPTANCE = """
SELECT run, arm, arm_kind, domain, requests, n_steps, n_drafted, n_accepted, n_output, latency_us,
       CAST(n_accepted AS DOUBLE PRECISION) / NULLIF(n_drafted, 0) AS draft_acceptance_rate,
       CAST(n_output AS DOUBLE PRECISION) / NULLIF(n_steps, 0) AS tokens_per_step
FROM (
  SELECT run, arm, arm_kind, domain, COUNT(*) AS requests,
         CAST(SUM(n_steps) AS BIGINT) AS n_steps, CAST(SUM(n_drafted) AS BIGINT) AS n_drafted,
         CAST(SUM(n_accepted) AS BIGINT) AS n_accepted, CAST(SUM(n_output) AS BIGINT) AS n_output,
         CAST(SUM(latency_us) AS BIGINT) AS latency_us
  FROM v_request GROUP BY run, arm, arm_kind, domain
) AS sums
"""
VERSIONS = """
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
COMMITMENTS = ("prompt_commitment", "output_commitment", "trace_commitment", "tokens_commitment")
MOVED = ("prompt_sha256", "output_sha256", "text")
KEPT = "kept_content"
"""Salts and commitments that a downgrade cannot place; the next upgrade takes them back."""


def upgrade() -> None:
    _drop_views()
    _create_tables()
    _move_content()
    _move_findings()
    guards.install_erasure()
    guards.guard("erasure")
    guards.guard_erasable("content", "request_id", "content")
    guards.guard_erasable("finding", "check_result_id", "finding")
    guards.unguard("token_trace")
    guards.guard_erasable("token_trace", "request_id", "content")
    _create_views("content", "LEFT JOIN content ON content.request_id = request.id")


def _create_tables() -> None:
    op.create_table(
        "content",
        sa.Column("request_id", KEY, sa.ForeignKey("request.id"), primary_key=True),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("prompt_ids", sa.JSON(), nullable=True),
        sa.Column("prompt_sha256", sa.String(64), nullable=False),
        sa.Column("output_sha256", sa.String(64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
    )
    op.create_table(
        "finding",
        sa.Column("check_result_id", KEY, sa.ForeignKey("check_result.id"), primary_key=True),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("summary", sa.Text(), nullable=True),
        sa.Column("findings", sa.JSON(), nullable=False),
    )
    op.create_table(
        "erasure",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("run.id"), nullable=False),
        sa.Column("request_id", KEY, sa.ForeignKey("request.id"), nullable=True),
        sa.Column("check_result_id", KEY, sa.ForeignKey("check_result.id"), nullable=True),
        sa.Column("what", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("trim(reason) <> ''", name="ck_erasure_reason"),
    )
    for column in ("run_id", "request_id", "check_result_id"):
        op.create_index(f"ix_erasure_{column}", "erasure", [column])


def _move_content() -> None:
    blob, number = ("BYTEA", "BIGINT") if _postgresql() else ("BLOB", "INTEGER")
    columns = ", ".join(f"{name} VARCHAR(64)" for name in COMMITMENTS)
    op.execute(
        f"CREATE TABLE IF NOT EXISTS {KEPT} "
        f"(request_id {number}, salt {blob}, prompt_ids JSON, record_version INTEGER, {columns})"
    )
    op.execute(
        f"INSERT INTO content (request_id, salt, prompt_ids, {', '.join(MOVED)}) "
        f"SELECT request.id, kept.salt, kept.prompt_ids, {', '.join(f'request.{name}' for name in MOVED)} "
        f"FROM request LEFT JOIN {KEPT} AS kept ON kept.request_id = request.id"
    )
    op.add_column("request", sa.Column("record_version", sa.Integer(), nullable=False, server_default="1"))
    for name in COMMITMENTS:
        op.add_column("request", sa.Column(name, sa.String(64), nullable=True))
    guards.unguard("request")
    kept = f"FROM {KEPT} AS kept WHERE kept.request_id = request.id"
    values = ", ".join(f"{name} = (SELECT {name} {kept})" for name in ("record_version", *COMMITMENTS))
    op.execute(f"UPDATE request SET {values} WHERE id IN (SELECT request_id FROM {KEPT})")
    guards.guard("request")
    op.execute(f"DROP TABLE {KEPT}")
    for name in MOVED:
        op.drop_column("request", name)


def _move_findings() -> None:
    op.execute(
        "INSERT INTO finding (check_result_id, findings) "
        "SELECT id, findings FROM check_result WHERE json_array_length(findings) > 0"
    )
    op.add_column("check_result", sa.Column("n_findings", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("check_result", sa.Column("findings_commitment", sa.String(64), nullable=True))
    guards.unguard("check_result")
    op.execute("UPDATE check_result SET n_findings = json_array_length(findings)")
    guards.guard("check_result")
    op.drop_column("check_result", "findings")


def downgrade() -> None:
    if _count("SELECT COUNT(*) FROM erasure"):
        raise CommandError("content of this store was erased, and older revisions cannot express that")
    _drop_views()
    _return_findings()
    _return_content()
    guards.unguard("token_trace")
    for table in ("erasure", "finding", "content"):
        op.drop_table(table)
    guards.uninstall_erasure()
    guards.guard("token_trace")
    old = ("request", "")
    _create_views(*old)


def _return_content() -> None:
    if _count("SELECT COUNT(*) FROM request WHERE record_version > 1"):
        columns = ", ".join(f"request.{name}" for name in ("record_version", *COMMITMENTS))
        op.execute(
            f"CREATE TABLE {KEPT} AS SELECT content.request_id, content.salt, content.prompt_ids, {columns} "
            "FROM request JOIN content ON content.request_id = request.id"
        )
    guards.unguard("request")
    for name in MOVED:
        kind: sa.types.TypeEngine[Any] = sa.Text() if name == "text" else sa.String(64)
        op.add_column("request", sa.Column(name, kind, nullable=False, server_default=""))
        op.execute(f"UPDATE request SET {name} = (SELECT {name} FROM content WHERE request_id = request.id)")
    guards.guard("request")
    for name in ("record_version", *COMMITMENTS):
        op.drop_column("request", name)


def _return_findings() -> None:
    op.add_column("check_result", sa.Column("findings", sa.JSON(), nullable=False, server_default="[]"))
    guards.unguard("check_result")
    found = "FROM finding WHERE check_result_id = check_result.id"
    op.execute(
        f"UPDATE check_result SET findings = (SELECT finding.findings {found}), "
        f"summary = COALESCE((SELECT finding.summary {found}), summary) "
        "WHERE id IN (SELECT check_result_id FROM finding)"
    )
    guards.guard("check_result")
    op.drop_column("check_result", "findings_commitment")
    op.drop_column("check_result", "n_findings")


def _count(query: str) -> int:
    return 0 if op.get_context().as_sql else int(op.get_bind().execute(sa.text(query)).scalar_one())


def _drop_views() -> None:
    for name in ("v_draft_version", "v_acceptance", "v_request"):
        op.execute(f"DROP VIEW {name}")


def _create_views(content: str, join: str) -> None:
    op.execute(f"CREATE VIEW v_request AS {REQUEST.format(counts=COUNTS, content=content, join=join)}")
    op.execute(f"CREATE VIEW v_acceptance AS {ACCEPTANCE}")
    op.execute(f"CREATE VIEW v_draft_version AS {VERSIONS}")


def _postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"
