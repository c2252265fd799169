"""Triggers that keep rows from being changed: SQL for SQLite and PostgreSQL.

They guard against mistakes, not against the owner of the file, who can drop them; the log covers that case. A migration
that rebuilds a table (Alembic's batch mode does, silently) loses the table's triggers and must call `guard` for it
again.
"""

from alembic import op

REFUSE = """
CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the store is append-only: % on % refused', TG_OP, TG_TABLE_NAME
    USING ERRCODE = 'integrity_constraint_violation';
END $$
"""
FUNCTION = "audit_refuse"
REFUSE_KEPT = """
CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE erased boolean;
BEGIN
  EXECUTE format('SELECT EXISTS (SELECT 1 FROM erasure WHERE %I = ($1).%I AND what = %L)',
                 TG_ARGV[0], TG_ARGV[0], TG_ARGV[1]) USING OLD INTO erased;
  IF NOT erased THEN
    RAISE EXCEPTION 'the store is append-only: % on % refused: no erasure names the row', TG_OP, TG_TABLE_NAME
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN OLD;
END $$
"""
FUNCTION_KEPT = "audit_refuse_kept"


def install() -> None:
    """Create the functions that the triggers need, once per database."""
    if _postgresql():
        op.execute(REFUSE.format(name=FUNCTION))
        op.execute(REFUSE_KEPT.format(name=FUNCTION_KEPT))


def uninstall() -> None:
    """Undo `install`; the tables must already be dropped."""
    if _postgresql():
        op.execute(f"DROP FUNCTION {FUNCTION}()")
        op.execute(f"DROP FUNCTION {FUNCTION_KEPT}()")


def guard(table: str, columns: tuple[str, ...] = ()) -> None:
    """Reject every DELETE (on PostgreSQL also TRUNCATE) on a table, and every UPDATE, or that of the named columns."""
    _trigger(table, "update", f"UPDATE OF {', '.join(columns)}" if columns else "UPDATE")
    _trigger(table, "delete", "DELETE")
    if _postgresql():
        _trigger(table, "truncate", "TRUNCATE", "STATEMENT")


def guard_erasable(table: str, key: str, what: str) -> None:
    """As `guard`, but allow DELETE of a row that a row of `erasure` names by `key`, as `what`."""
    _trigger(table, "update", "UPDATE")
    head = f"CREATE TRIGGER guard_{table}_delete BEFORE DELETE ON {table} FOR EACH ROW"
    if _postgresql():
        op.execute(f"{head} EXECUTE FUNCTION {FUNCTION_KEPT}('{key}', '{what}')")
        _trigger(table, "truncate", "TRUNCATE", "STATEMENT")
        return
    named = f"SELECT 1 FROM erasure WHERE erasure.{key} = OLD.{key} AND erasure.what = '{what}'"
    message = f"the store is append-only: DELETE on {table} refused: no erasure names the row"
    op.execute(f"{head} WHEN NOT EXISTS ({named}) BEGIN SELECT RAISE(ABORT, '{message}'); END")


def _trigger(table: str, action: str, event: str, text: str = "ROW") -> None:
    head = f"CREATE TRIGGER guard_{table}_{action} BEFORE {event} ON {table} FOR EACH {text}"
    if _postgresql():
        op.execute(f"{head} EXECUTE FUNCTION {FUNCTION}()")
        return
    message = f"the store is append-only: {action.upper()} on {table} refused"
    op.execute(f"{head} BEGIN SELECT RAISE(ABORT, '{message}'); END")


def _postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"
