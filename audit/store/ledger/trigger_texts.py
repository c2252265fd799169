"""The text of every trigger that keeps a store append-only, as the database returns it.

A trigger of the right name may do nothing, so `audit.store.health` compares texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from audit.store.ledger.coverage import COVERED
from audit.store.tables.content import CONTENT, FINDING
from audit.store.tables.runs import APPEND_ONLY, ERASABLE

EVENTS: Final = ("UPDATE", "DELETE")
REFUSE: Final = """
BEGIN
  RAISE EXCEPTION 'the store is append-only: % on % refused', TG_OP, TG_TABLE_NAME
    USING ERRCODE = 'integrity_constraint_violation';
END """
"""Body of PostgreSQL's function `audit_refuse`."""
REFUSE_KEPT: Final = """
DECLARE erased boolean;
BEGIN
  EXECUTE format('SELECT EXISTS (SELECT 1 FROM erasure WHERE %I = ($1).%I AND what = %L)',
                 TG_ARGV[0], TG_ARGV[0], TG_ARGV[1]) USING OLD INTO erased;
  IF NOT erased THEN
    RAISE EXCEPTION 'the store is append-only: % on % refused: no erasure names the row', TG_OP, TG_TABLE_NAME
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN OLD;
END """
"""Body of PostgreSQL's function `audit_refuse_kept`."""
ERASED_BY: Final[Mapping[str, tuple[str, str]]] = {
    "content": ("request_id", CONTENT),
    "request_tokens": ("request_id", CONTENT),
    "token_trace": ("request_id", CONTENT),
    "tool_event": ("request_id", CONTENT),
    "finding": ("check_result_id", FINDING),
}
"""Key and kind of the erasure that lets a row of a table go."""
POSTGRESQL: Final = """
SELECT tgname, pg_get_triggerdef(pg_trigger.oid), tgenabled, prosrc
FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid JOIN pg_proc ON pg_proc.oid = tgfoid
WHERE NOT tgisinternal AND relnamespace = CAST(current_schema() AS regnamespace)
"""


def expected(dialect: str) -> Mapping[str, str]:
    """The text of each trigger by name, of `sqlite` or `postgresql`."""
    texts: dict[str, str] = {}
    for table in (*APPEND_ONLY, "run"):
        for action in (*EVENTS, "TRUNCATE") if dialect == "postgresql" else EVENTS:
            name = f"guard_{table}_{action.lower()}"
            texts[name] = _postgresql(name, table, action) if dialect == "postgresql" else _sqlite(name, table, action)
    return texts


def _event(table: str, action: str) -> str:
    fixed = table == "run" and action == "UPDATE"
    return f"UPDATE OF {', '.join(COVERED['run'].columns)}" if fixed else action


def _sqlite(name: str, table: str, action: str) -> str:
    if table in ERASABLE and action == "DELETE":
        key, what = ERASED_BY[table]
        named = f"SELECT 1 FROM erasure WHERE erasure.{key} = OLD.{key} AND erasure.what = '{what}'"
        return (
            f"CREATE TRIGGER {name} BEFORE DELETE ON {table} FOR EACH ROW WHEN NOT EXISTS ({named}) BEGIN SELECT "
            f"RAISE(ABORT, 'the store is append-only: DELETE on {table} refused: no erasure names the row'); END"
        )
    return (
        f"CREATE TRIGGER {name} BEFORE {_event(table, action)} ON {table} FOR EACH ROW "
        f"BEGIN SELECT RAISE(ABORT, 'the store is append-only: {action} on {table} refused'); END"
    )


def _postgresql(name: str, table: str, action: str) -> str:
    item = "STATEMENT" if action == "TRUNCATE" else "ROW"
    head = f"CREATE TRIGGER {name} BEFORE {_event(table, action)} ON public.{table} FOR EACH {item}"
    if table in ERASABLE and action == "DELETE":
        key, what = ERASED_BY[table]
        return f"{head} EXECUTE FUNCTION audit_refuse_kept('{key}', '{what}') O {REFUSE_KEPT}"
    return f"{head} EXECUTE FUNCTION audit_refuse() O {REFUSE}"


def stored(session: Session) -> Mapping[str, str]:
    """The text of each trigger of the store by name."""
    if session.get_bind().dialect.name != "postgresql":
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        return {row.name: row.sql for row in session.execute(text(query))}
    rows = session.execute(text(POSTGRESQL))
    return {name: f"{definition} {_state(enabled)} {source}" for name, definition, enabled, source in rows}


def _state(enabled: str | bytes) -> str:
    return enabled.decode("ascii") if isinstance(enabled, bytes) else enabled
