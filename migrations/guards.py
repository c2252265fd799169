"""Triggers that keep rows from being changed: SQL for SQLite and PostgreSQL.

They guard against mistakes, not against the owner of the file, who can drop
them; the record root covers that case. A migration that rebuilds a table
(Alembic's batch mode does, silently) loses the table's triggers and must call
`guard` for it again.
"""

from __future__ import annotations

from alembic import op

REFUSE = """
CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the store is append-only: % on % refused', TG_OP, TG_TABLE_NAME
    USING ERRCODE = 'integrity_constraint_violation';
END $$
"""
FUNCTION = "audit_refuse"


def install() -> None:
    """Create the function that the triggers need, once per database."""
    if _postgresql():
        op.execute(REFUSE.format(name=FUNCTION))


def uninstall() -> None:
    """Undo `install`; the tables must already be dropped."""
    if _postgresql():
        op.execute(f"DROP FUNCTION {FUNCTION}()")


def guard(table: str) -> None:
    """Reject every UPDATE and DELETE (on PostgreSQL also TRUNCATE) on a table."""
    _trigger(table, "update", "UPDATE")
    _trigger(table, "delete", "DELETE")
    if _postgresql():
        _trigger(table, "truncate", "TRUNCATE", "STATEMENT")


def guard_columns(table: str, columns: tuple[str, ...]) -> None:
    """Reject DELETE on a table, and UPDATE of the named columns."""
    _trigger(table, "update", f"UPDATE OF {', '.join(columns)}")
    _trigger(table, "delete", "DELETE")
    if _postgresql():
        _trigger(table, "truncate", "TRUNCATE", "STATEMENT")


def _trigger(table: str, action: str, event: str, each: str = "ROW") -> None:
    head = f"CREATE TRIGGER guard_{table}_{action} BEFORE {event} ON {table} FOR EACH {each}"
    if _postgresql():
        op.execute(f"{head} EXECUTE FUNCTION {FUNCTION}()")
        return
    message = f"the store is append-only: {action.upper()} on {table} refused"
    op.execute(f"{head} BEGIN SELECT RAISE(ABORT, '{message}'); END")


def _postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"
