"""The situations of speculation that each check examined.

Revision ID: 0003
Revises: 0002
Create Date: 2026-11-23
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations import guards

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

VIEW = """
SELECT v.run, v.suite, v.arm, v.check_name, coverage.situation, coverage.occurred, coverage.examined, coverage.least,
       CASE WHEN coverage.examined < coverage.least THEN 1 ELSE 0 END AS short
FROM coverage
JOIN check_result ON check_result.id = coverage.check_result_id
JOIN (
  SELECT run.id AS run_id, run.ulid AS run, run.suite_name AS suite, arm.id AS arm_id, arm.name AS arm,
         check_result.name AS check_name, MAX(check_result.id) AS latest
  FROM check_result
  JOIN arm ON arm.id = check_result.arm_id
  JOIN run ON run.id = check_result.run_id
  GROUP BY run.id, run.ulid, run.suite_name, arm.id, arm.name, check_result.name
) AS v ON v.latest = check_result.id
"""


def upgrade() -> None:
    op.create_table(
        "coverage",
        sa.Column(
            "check_result_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            sa.ForeignKey("check_result.id"),
            primary_key=True,
        ),
        sa.Column("situation", sa.String(64), primary_key=True),
        sa.Column("occurred", sa.BigInteger(), nullable=False),
        sa.Column("examined", sa.BigInteger(), nullable=False),
        sa.Column("least", sa.BigInteger(), nullable=True),
    )
    guards.guard("coverage")
    op.execute(f"CREATE VIEW v_coverage AS {VIEW}")


def downgrade() -> None:
    op.execute("DROP VIEW v_coverage")
    op.drop_table("coverage")
