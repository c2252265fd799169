"""Steps and tokens as JSON text, a row of each per request, with views that unnest them.

Revision ID: 0007
Revises: 0006
Create Date: 2026-11-23
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations import guards, unnested

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TOKEN_COLUMNS = ("token", "role", "parent", "depth", "p", "q", "logprob")
STEP_COLUMNS = ("step", "position", "n_drafted", "n_accepted", "n_emitted", "draft_us", "verify_us")
VERSION_COLUMNS = ("draft_version", "draft_sha256")
BATCH = 500
"""Requests converted at once."""

V_DRAFT_VERSION = """
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
    _create_tables()
    if not op.get_context().as_sql:  # a script for an empty database has no rows to move
        _move_steps(op.get_bind())
    op.execute("DROP VIEW v_draft_version")
    op.drop_table("decode_step")
    for table in ("request_steps", "token_piece"):
        guards.guard(table)
    guards.guard_erasable("request_tokens", "request_id", "content")
    views = unnested.views(op.get_context().dialect.name)
    for name in ("decode_step", "v_step", "v_token"):
        op.execute(f"CREATE VIEW {name} AS {views[name]}")
    op.execute(f"CREATE VIEW v_draft_version AS {V_DRAFT_VERSION}")


def _link(table: str) -> sa.Column[Any]:
    return sa.Column(f"{table}_id", KEY, sa.ForeignKey(f"{table}.id"), primary_key=True)


def _create_tables() -> None:
    op.create_table(
        "request_steps",
        _link("request"),
        sa.Column("steps", sa.Text(), nullable=False),
        sa.Column("draft_versions", sa.Text(), nullable=True),
    )
    op.create_table(
        "request_tokens",
        _link("request"),
        *(sa.Column(name, sa.Text(), nullable=name not in {"token", "role"}) for name in TOKEN_COLUMNS),
    )
    op.create_table(
        "token_piece",
        sa.Column("tokenizer_id", KEY, sa.ForeignKey("artifact.id"), primary_key=True),
        sa.Column("token", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("piece", sa.Text(), nullable=False),
        sqlite_with_rowid=False,
    )


def _move_steps(connection: sa.Connection) -> None:
    """The rows of `decode_step` as one row per request, with the same values."""
    names = ", ".join((*STEP_COLUMNS, *VERSION_COLUMNS))
    insert = sa.text("INSERT INTO request_steps (request_id, steps, draft_versions) VALUES (:id, :steps, :versions)")
    query = sa.text(f"SELECT request_id, {names} FROM decode_step ORDER BY request_id, step")
    rows = connection.execute(query, execution_options={"yield_per": 20_000})
    made = []
    for request, steps in itertools.groupby(rows, key=lambda row: row[0]):
        made.append({"id": request, **_as_text([tuple(step)[2:] for step in steps])})
    for start in range(0, len(made), BATCH):
        connection.execute(insert, made[start : start + BATCH])
    connection.execute(
        sa.text(
            "INSERT INTO request_steps (request_id, steps) SELECT id, '[]' FROM request"
            " WHERE id NOT IN (SELECT request_id FROM request_steps)"
        )
    )


def _as_text(steps: list[tuple[Any, ...]]) -> dict[str, str | None]:
    """The columns of `request_steps`, from rows of counts, times, and the drafting version's number and digest."""
    digests = {str(step[-2]): step[-1] for step in steps if step[-1] is not None}
    values = [step[:-2] if step[-2] is None else step[:-1] for step in steps]
    versions = json.dumps(digests, sort_keys=True) if digests else None
    return {"steps": json.dumps(values, separators=(",", ":")), "versions": versions}


def downgrade() -> None:
    for name in ("v_draft_version", "v_token", "v_step"):
        op.execute(f"DROP VIEW {name}")
    names = ", ".join(("request_id", *STEP_COLUMNS, *VERSION_COLUMNS))
    op.execute(f"CREATE TABLE steps_copy AS SELECT {names} FROM decode_step")
    op.execute("DROP VIEW decode_step")
    op.create_table(
        "decode_step",
        _link("request"),
        sa.Column("step", sa.Integer(), primary_key=True),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in STEP_COLUMNS[1:5]),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in STEP_COLUMNS[5:]),
        sa.Column("draft_version", sa.Integer(), nullable=True),
        sa.Column("draft_sha256", sa.String(64), nullable=True),
        sqlite_with_rowid=False,
    )
    op.execute(f"INSERT INTO decode_step ({names}) SELECT {names} FROM steps_copy")
    op.drop_table("steps_copy")
    guards.guard("decode_step")
    op.execute(f"CREATE VIEW v_draft_version AS {V_DRAFT_VERSION}")
    for table in ("token_piece", "request_tokens", "request_steps"):
        op.drop_table(table)
