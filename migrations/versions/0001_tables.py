"""All tables of a store, their triggers and views.

Revision ID: 0001
Revises:
Create Date: 2026-11-28
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations import guards, views
from migrations.columns import KEY, column, identity, json, link, text, time, whole

revision = "0001"
down_revision = None

TABLES = (
    *("artifact", "environment", "token_piece", "run", "run_artifact", "run_event"),
    *("run_sums", "arm", "arm_speculation", "request", "content", "request_steps"),
    *("request_tokens", "token_trace", "constraint_event", "tool_event", "safety_event", "judgement"),
    *("check_result", "coverage", "finding", "erasure", "gate_decision", "attachment"),
    *("attestation", "registration", "log_entry", "checkpoint", "watch", "watch_reading"),
)
"""In creation order, as foreign keys require."""
RUN_FIXED = (
    *("id", "ulid", "suite_name", "suite_artifact_id", "environment_id", "config"),
    *("started_at", "actor", "code_commit", "purpose", "ticket"),
)
"""Columns of a run that never change."""
ERASABLE = dict.fromkeys(("content", "request_tokens", "token_trace", "tool_event"), ("request_id", "content"))
ERASABLE["finding"] = ("check_result_id", "finding")
"""Key and kind of the erasure that lets a row of a table go."""


def upgrade() -> None:
    _create_artifacts()
    _create_runs()
    _create_requests()
    _create_events()
    _create_checks()
    _create_decisions()
    _create_watches()
    _guard()
    for name, query in views.views(op.get_context().dialect.name).items():
        op.execute(f"CREATE VIEW {name} AS {query}")


def _guard() -> None:
    guards.install()
    guards.guard("run", RUN_FIXED)
    for table in TABLES:
        if table in ERASABLE:
            guards.guard_erasable(table, *ERASABLE[table])
        elif table not in ("run", "run_sums"):
            guards.guard(table)


def _create_artifacts() -> None:
    op.create_table(
        "artifact",
        identity(),
        text("kind", 16),
        text("name"),
        text("revision", nullable=True),
        text("sha256", 64),
        json("manifest"),
        sa.UniqueConstraint("kind", "sha256"),
    )
    op.create_table(
        "environment",
        identity(),
        text("sha256", 64),
        *(json(name) for name in ("packages", "hardware", "code")),
        sa.UniqueConstraint("sha256"),
    )
    op.create_table(
        "token_piece",
        link("artifact", name="tokenizer_id", key=True),
        whole("token", key=True),
        text("piece"),
        sqlite_with_rowid=False,
    )


def _create_runs() -> None:
    op.create_table(
        "run",
        identity(),
        text("ulid", 26),
        text("suite_name"),
        link("artifact", name="suite_artifact_id"),
        link("environment"),
        json("config"),
        text("status", 16),
        time("started_at"),
        time("finished_at", nullable=True),
        text("actor"),
        *(text(name, nullable=True) for name in ("purpose", "ticket", "code_commit")),
        *(text(name, 64, nullable=True) for name in ("record_root", "content_root")),
        whole("tokens", big=True, nullable=True),
        whole("exit_code", nullable=True),
        sa.UniqueConstraint("ulid"),
    )
    op.create_index("ix_run_started_at", "run", ["started_at"])
    op.create_table(
        "run_artifact",
        link("run", key=True),
        text("role", 64, key=True),
        text("name", key=True),
        text("revision", nullable=True),
        link("artifact"),
    )
    op.create_table("run_event", identity(), link("run"), text("status", 16), time("at"), text("detail"))
    op.create_index("ix_run_event_run_id", "run_event", ["run_id"])
    op.create_table("run_sums", link("run", key=True), whole("format"), text("sums"))
    op.create_table(
        "arm",
        identity(),
        link("run"),
        text("name"),
        text("kind", 16),
        text("level", 4),
        *(json(name) for name in ("spec", "effective")),
        column("lossless", sa.Boolean()),
        text("context_sha256", 64),
        sa.UniqueConstraint("run_id", "name"),
    )
    op.create_table(
        "arm_speculation",
        link("arm", key=True),
        column("speculation", sa.Boolean()),
        *(text(name, nullable=True) for name in ("proposer", "proposer_version")),
        whole("gamma", nullable=True),
        text("tree", nullable=True),
        *(text(name, 16, nullable=True) for name in ("rule", "expected_equivalence")),
        text("numerics_probe_sha256", 64, nullable=True),
    )


def _create_requests() -> None:
    op.create_table(
        "request",
        identity(),
        link("run"),
        link("arm"),
        text("case_id"),
        whole("sample"),
        text("domain"),
        text("sampling_sha256", 64),
        *(text(name, 20) for name in ("seed", "stream")),
        *(whole(name) for name in ("n_prompt", "n_output", "n_steps", "n_drafted", "n_accepted")),
        text("finish_reason", 16),
        whole("latency_us", big=True),
        *(
            text(name, 64, nullable=True)
            for name in ("prompt_commitment", "output_commitment", "trace_commitment", "tokens_commitment")
        ),
        whole("record_version"),
        text("record_hash", 64),
        sa.UniqueConstraint("arm_id", "case_id", "sample"),
        sa.UniqueConstraint("run_id", "record_hash"),
    )
    op.create_index("ix_request_run_id_case_id", "request", ["run_id", "case_id"])
    op.create_index("ix_request_run_id_domain_case_id", "request", ["run_id", "domain", "case_id"])
    op.create_table(
        "content",
        link("request", key=True),
        column("salt", sa.LargeBinary(), nullable=True),
        json("prompt_ids", nullable=True),
        *(text(name, 64) for name in ("prompt_sha256", "output_sha256")),
        text("text"),
    )
    op.create_table("request_steps", link("request", key=True), text("steps"), text("draft_versions", nullable=True))
    op.create_table(
        "request_tokens",
        link("request", key=True),
        *(text(name) for name in ("token", "role")),
        *(text(name, nullable=True) for name in ("parent", "depth", "p", "q", "logprob")),
    )
    op.create_table(
        "token_trace",
        link("request", key=True),
        *(whole(name) for name in ("format", "n_events")),
        text("sha256", 64),
        column("payload", sa.LargeBinary()),
    )


def _create_events() -> None:
    op.create_table(
        "constraint_event",
        link("request", key=True),
        *(text(name, nullable=True) for name in ("library", "version")),
        whole("refused_token", nullable=True),
        column("whole", sa.Boolean(), nullable=True),
        text("not_read", nullable=True),
    )
    op.create_table(
        "tool_event",
        link("request", key=True),
        whole("call", key=True),
        *(text(name, nullable=True) for name in ("name", "arguments")),
        *(whole(name, nullable=True) for name in ("first_token", "end_token")),
        text("problem", nullable=True),
    )
    op.create_table(
        "safety_event",
        link("request", key=True),
        whole("event", key=True),
        *(text(name) for name in ("component", "version")),
        text("ruleset_sha256", 64),
        *(text(name, 16) for name in ("side", "action")),
        text("category"),
        whole("token", nullable=True),
        *(whole(name) for name in ("first_character", "end_character")),
    )


def _create_checks() -> None:
    op.create_table("judgement", identity(), link("run"), link("environment"), text("actor"), time("created_at"))
    op.create_index("ix_judgement_run_id", "judgement", ["run_id"])
    op.create_table(
        "check_result",
        identity(),
        link("run"),
        link("arm"),
        *(text(name, 64) for name in ("name", "claim")),
        text("verdict", 16),
        text("level", 4),
        whole("n", big=True),
        *(column(name, sa.Double(), nullable=True) for name in ("statistic", "p_value", "effect", "bound", "margin")),
        text("summary"),
        whole("n_findings"),
        text("findings_commitment", 64, nullable=True),
        json("details"),
        time("created_at"),
        link("judgement", nullable=True),
    )
    op.create_index("ix_check_result_run_id", "check_result", ["run_id"])
    op.create_table(
        "coverage",
        link("check_result", key=True),
        text("situation", 64, key=True),
        *(whole(name, big=True) for name in ("occurred", "examined")),
        whole("least", big=True, nullable=True),
    )
    op.create_table(
        "finding",
        link("check_result", key=True),
        column("salt", sa.LargeBinary(), nullable=True),
        text("summary", nullable=True),
        json("findings"),
    )
    op.create_table(
        "erasure",
        identity(),
        link("run"),
        link("request", nullable=True),
        link("check_result", nullable=True),
        text("what", 16),
        *(text(name) for name in ("reason", "actor")),
        time("created_at"),
        sa.CheckConstraint("trim(reason) <> ''", name="ck_erasure_reason"),
    )
    op.create_index("ix_erasure_check_result_id", "erasure", ["check_result_id"])
    op.create_index("ix_erasure_request_id", "erasure", ["request_id"])
    op.create_index("ix_erasure_run_id", "erasure", ["run_id"])


def _create_decisions() -> None:
    op.create_table(
        "gate_decision",
        identity(),
        link("run", nullable=True),
        text("policy_sha256", 64),
        json("policy"),
        text("decision", 16),
        json("reasons"),
        text("actor"),
        time("created_at"),
    )
    op.create_index("ix_gate_decision_run_id", "gate_decision", ["run_id"])
    op.create_table(
        "attachment",
        identity(),
        link("run"),
        *(text(name, 64) for name in ("report_before", "report_after")),
        text("format", 32),
        text("location"),
        json("statement"),
        time("created_at"),
    )
    op.create_index("ix_attachment_run_id", "attachment", ["run_id"])
    op.create_table(
        "attestation",
        identity(),
        link("run", nullable=True),
        text("predicate_type"),
        text("payload_sha256", 64),
        text("envelope"),
        json("subjects"),
        time("created_at"),
    )
    op.create_index("ix_attestation_payload_sha256", "attestation", ["payload_sha256"])
    op.create_index("ix_attestation_run_id", "attestation", ["run_id"])
    op.create_table(
        "registration",
        identity(),
        text("suite_name"),
        text("suite_sha256", 64),
        text("policy_name"),
        text("policy_sha256", 64),
        text("actor"),
        time("created_at"),
    )
    op.create_index("ix_registration_suite_sha256", "registration", ["suite_sha256"])
    op.create_table(
        "log_entry",
        column("seq", KEY, key=True, autoincrement=False),
        text("kind", 32),
        text("ref"),
        text("text", nullable=True),
        *(column(name, sa.LargeBinary()) for name in ("leaf", "node")),
    )
    op.create_table(
        "checkpoint", identity(), whole("size", big=True), text("root", 64), text("note"), time("created_at")
    )


def _create_watches() -> None:
    op.create_table(
        "watch",
        identity(),
        link("run", nullable=True),
        text("url"),
        column("reference", sa.Double(), nullable=True),
        text("reference_from"),
        *(column(name, sa.Double(), nullable=True) for name in ("rise_reference", "unit")),
        *(column(name, sa.Double()) for name in ("alpha", "interval_s")),
        text("actor"),
        time("created_at"),
    )
    op.create_index("ix_watch_run_id", "watch", ["run_id"])
    op.create_index("ix_watch_url", "watch", ["url"])
    op.create_table(
        "watch_reading",
        identity(),
        link("watch"),
        text("model"),
        time("at"),
        column("seconds", sa.Double(), nullable=True),
        text("gap", nullable=True),
        column("restarted", sa.Boolean()),
        *(whole(name, big=True, nullable=True) for name in ("drafts", "drafted", "accepted")),
        text("positions", nullable=True),
        column("acceptance_length", sa.Double(), nullable=True),
        *(whole(name, big=True, nullable=True) for name in ("requests", "errors")),
        *(column(name, sa.Double(), nullable=True) for name in ("latency_p50_s", "latency_p95_s", "latency_p99_s")),
        whole("draft_length", nullable=True),
        *(column(name, sa.Double(), nullable=True) for name in ("fall", "rise")),
        text("alarm", 8, nullable=True),
        *(text(name, nullable=True) for name in ("counters", "label", "answers")),
        whole("changed", nullable=True),
    )
    op.create_index("ix_watch_reading_watch_id_model_id", "watch_reading", ["watch_id", "model", "id"])


def downgrade() -> None:
    for name in reversed(list(views.views(op.get_context().dialect.name))):
        op.execute(f"DROP VIEW {name}")
    for table in reversed(TABLES):
        op.drop_table(table)
    guards.uninstall()
