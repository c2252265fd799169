"""First tables, their triggers and views.

Revision ID: 0001
Revises:
Create Date: 2026-11-20
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations import guards

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "artifact",
    "environment",
    "run",
    "run_artifact",
    "run_event",
    "arm",
    "request",
    "decode_step",
    "token_trace",
    "check_result",
    "gate_decision",
    "attachment",
)
"""In creation order, as foreign keys require."""

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

VIEWS = {
    "v_request": """
SELECT run.ulid AS run, run.suite_name AS suite, arm.name AS arm, arm.kind AS arm_kind,
       request.case_id, request.sample, request.domain, request.seed, request.n_prompt, request.n_output,
       request.n_steps, request.n_drafted, request.n_accepted, request.finish_reason, request.latency_us,
       request.sampling_sha256, request.output_sha256, request.text, request.record_hash,
       request.id AS request_id, token_trace.sha256 AS trace_sha256
FROM request
JOIN arm ON arm.id = request.arm_id
JOIN run ON run.id = request.run_id
LEFT JOIN token_trace ON token_trace.request_id = request.id
""",
    "v_acceptance": """
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
""",
    "v_check": """
SELECT run.ulid AS run, run.suite_name AS suite, arm.name AS arm, arm.kind AS arm_kind,
       check_result.name AS check_name, check_result.claim, check_result.verdict, check_result.level, check_result.n,
       check_result.statistic, check_result.p_value, check_result.effect, check_result.bound, check_result.margin,
       check_result.summary, check_result.created_at
FROM check_result
JOIN arm ON arm.id = check_result.arm_id
JOIN run ON run.id = check_result.run_id
WHERE check_result.id IN (SELECT MAX(id) FROM check_result GROUP BY arm_id, name)
""",
}
"""In dependency order."""


def _key() -> sa.types.TypeEngine[Any]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _id() -> sa.Column[Any]:
    return sa.Column("id", _key(), primary_key=True)


def _link(table: str, *, name: str | None = None, key: bool = False, nullable: bool = False) -> sa.Column[Any]:
    target = sa.ForeignKey(f"{table}.id")
    return sa.Column(name or f"{table}_id", _key(), target, primary_key=key, nullable=nullable)


def _text(name: str, length: int | None = None, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length) if length else sa.Text(), nullable=nullable)


def _json(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(), nullable=False)


def _count(name: str, *, big: bool = False, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger() if big else sa.Integer(), nullable=nullable)


def _time(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    _create_artifacts()
    _create_runs()
    _create_arms()
    _create_requests()
    _create_steps()
    _create_checks()
    _create_decisions()
    guards.install()
    for table in TABLES:
        if table == "run":
            guards.guard_columns(table, RUN_FIXED)
        else:
            guards.guard(table)
    for name, select in VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {select}")


def _create_artifacts() -> None:
    op.create_table(
        "artifact",
        _id(),
        _text("kind", 16),
        _text("name"),
        _text("revision", nullable=True),
        _text("sha256", 64),
        _json("manifest"),
        sa.UniqueConstraint("kind", "sha256"),
    )
    op.create_table(
        "environment",
        _id(),
        _text("sha256", 64),
        _json("packages"),
        _json("hardware"),
        _json("code"),
        sa.UniqueConstraint("sha256"),
    )


def _create_runs() -> None:
    op.create_table(
        "run",
        _id(),
        _text("ulid", 26),
        _text("suite_name"),
        _link("artifact", name="suite_artifact_id"),
        _link("environment"),
        _json("config"),
        _text("status", 16),
        _time("started_at"),
        _time("finished_at", nullable=True),
        _text("actor"),
        _text("code_commit", nullable=True),
        _text("record_root", 64, nullable=True),
        _count("tokens", big=True, nullable=True),
        _count("exit_code", nullable=True),
        sa.UniqueConstraint("ulid"),
    )
    op.create_index("ix_run_started_at", "run", ["started_at"])
    op.create_table(
        "run_artifact",
        _link("run", key=True),
        sa.Column("role", sa.String(64), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        _text("revision", nullable=True),
        _link("artifact"),
    )
    op.create_table("run_event", _id(), _link("run"), _text("status", 16), _time("at"), _text("detail"))
    op.create_index("ix_run_event_run_id", "run_event", ["run_id"])


def _create_arms() -> None:
    op.create_table(
        "arm",
        _id(),
        _link("run"),
        _text("name"),
        _text("kind", 16),
        _text("level", 4),
        _json("spec"),
        _json("effective"),
        sa.Column("lossless", sa.Boolean(), nullable=False),
        _text("context_sha256", 64),
        sa.UniqueConstraint("run_id", "name"),
    )


def _create_requests() -> None:
    op.create_table(
        "request",
        _id(),
        _link("run"),
        _link("arm"),
        _text("case_id"),
        _count("sample"),
        _text("domain"),
        _text("prompt_sha256", 64),
        _text("sampling_sha256", 64),
        _text("seed", 20),
        _text("stream", 20),
        *(_count(name) for name in ("n_prompt", "n_output", "n_steps", "n_drafted", "n_accepted")),
        _text("finish_reason", 16),
        _count("latency_us", big=True),
        _text("output_sha256", 64),
        _text("text"),
        _text("record_hash", 64),
        sa.UniqueConstraint("arm_id", "case_id", "sample"),
        sa.UniqueConstraint("run_id", "record_hash"),
    )
    op.create_index("ix_request_run_id_case_id", "request", ["run_id", "case_id"])


def _create_steps() -> None:
    op.create_table(
        "decode_step",
        _link("request", key=True),
        sa.Column("step", sa.Integer(), primary_key=True),
        *(_count(name) for name in ("position", "n_drafted", "n_accepted", "n_emitted")),
        _count("draft_us", big=True),
        _count("verify_us", big=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "token_trace",
        _link("request", key=True),
        _count("format"),
        _count("n_events"),
        _text("sha256", 64),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
    )


def _create_checks() -> None:
    numbers = ("statistic", "p_value", "effect", "bound", "margin")
    op.create_table(
        "check_result",
        _id(),
        _link("run"),
        _link("arm"),
        _text("name", 64),
        _text("claim", 64),
        _text("verdict", 16),
        _text("level", 4),
        _count("n", big=True),
        *(sa.Column(name, sa.Double(), nullable=True) for name in numbers),
        _text("summary"),
        _json("findings"),
        _json("details"),
        _time("created_at"),
    )
    op.create_index("ix_check_result_run_id", "check_result", ["run_id"])


def _create_decisions() -> None:
    op.create_table(
        "gate_decision",
        _id(),
        _link("run", nullable=True),
        _text("policy_sha256", 64),
        _json("policy"),
        _text("decision", 16),
        _json("reasons"),
        _text("actor"),
        _time("created_at"),
    )
    op.create_index("ix_gate_decision_run_id", "gate_decision", ["run_id"])
    op.create_table(
        "attachment",
        _id(),
        _link("run"),
        _text("report_before", 64),
        _text("report_after", 64),
        _text("format", 32),
        _text("location"),
        _json("statement"),
        _time("created_at"),
    )
    op.create_index("ix_attachment_run_id", "attachment", ["run_id"])


def downgrade() -> None:
    for name in reversed(VIEWS):
        op.execute(f"DROP VIEW {name}")
    for table in reversed(TABLES):
        op.drop_table(table)
    guards.uninstall()
