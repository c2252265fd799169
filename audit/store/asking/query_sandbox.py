"""A caller's SELECT on a store: it cannot write, start anything, or outlast its time.

SQLite runs in a process of its own (`query_worker`), which is ended when the time is over. PostgreSQL gets the query as
that of a cursor in a read-only transaction with a statement timeout: a cursor takes a single SELECT, so neither COPY
nor DO nor a second statement. A superuser's SELECT could still read files of the server and start programs.
"""

import math
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import URL, Connection, TextClause, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import SQLAlchemyError, StatementError

from audit.errors import UserError
from audit.store.asking import query_worker
from audit.store.base.connection import BUSY_MS, is_sqlite, open_readonly, parse_url, readonly_uri, sqlite_path
from engine.core.child import ChildStopped, Script, run_script

GRACE_S: Final = 1.0
"""Seconds beyond the timeout for starting the process, and for the database to stop by itself."""
MOST_S: Final = 1e6
"""Longest timeout, 11 days: the system's calls take no more."""
REFUSALS: Final = (
    *("not authorized", "authorization denied", "read-only transaction", "within a transaction"),
    "insert multiple commands",
)
"""Fragments of the databases' messages on a statement that would write."""
NO_SELECT: Final = re.compile(r"syntax error at or near|must not contain data-modifying|SELECT \.\.\. INTO")
"""PostgreSQL's messages about what is no query of a cursor."""
FORBIDDEN: Final = re.compile(
    r"\b(?:pg_(?:read_(?:binary_)?file|write_\w+|ls_\w+|stat_file|file_\w+|reload_conf|rotate_logfile\w*|switch_wal"
    r"|create_\w+|drop_\w+|copy_\w+|terminate_backend|cancel_backend|logical_\w+|replication_(?:origin|slot_adv)\w*"
    r"|promote|backup_\w+|import_\w+|export_snapshot|(?:try_)?advisory_\w+|notify|log_\w+|wal_replay_\w+)"
    r"|lo_(?:import|export|creat\w*|open|put|get|unlink|from_bytea|truncate\w*|lseek\w*|tell\w*|close)|loread|lowrite"
    r"|dblink\w*|set_config|\w+_to_xml\w*|ts_stat|ts_rewrite)\b|U&['\"]",
    re.IGNORECASE,
)
"""Functions of PostgreSQL that reach beyond the query, or run another one; and the spelling that would hide a name."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of a query; `cut` is true if it had more rows than the limit."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    cut: bool


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Limits of a query: seconds, and rows to return at most. `superuser`: it may run as one."""

    timeout_s: float
    rows: int
    superuser: bool = False


def ask(url: str, sql: str, params: Mapping[str, Any], limits: QueryLimits) -> QueryResult:
    """Run one SELECT that cannot write, on the store at a path or URL; parameters are written `:name`.

    Raises:
        UserError: not a SELECT, an SQL error, a missing parameter, a timeout, too large a result, or a superuser.
    """
    if not (math.isfinite(limits.timeout_s) and limits.timeout_s > 0):
        raise UserError(f"--timeout {limits.timeout_s:g}: write a number of seconds above 0")
    target, statement = parse_url(url), _statement(sql, params)
    if is_sqlite(target):
        return _ask_sqlite(target, statement, params, limits)
    return _ask_postgresql(target, statement, params, limits)


def _statement(sql: str, params: Mapping[str, Any]) -> TextClause:
    statement = text(sql)
    wanted = set(statement.compile().params)
    for name in sorted(wanted - set(params)):
        raise UserError(f"the query needs a value for :{name}; give --param {name}=VALUE")
    for name in sorted(set(params) - wanted):
        raise UserError(f"the query has no parameter :{name}; leave out --param {name}=...")
    return statement


def _ask_sqlite(url: URL, statement: TextClause, params: Mapping[str, Any], limits: QueryLimits) -> QueryResult:
    compiled = statement.compile(dialect=sqlite.dialect(paramstyle="qmark"))
    job = {
        "uri": readonly_uri(sqlite_path(url)),
        "sql": str(compiled),
        "values": [params[name] for name in compiled.positiontup or ()],
        "rows": limits.rows + 1,
        "seconds": min(limits.timeout_s, MOST_S),
        "busy_ms": min(BUSY_MS, int(1000 * min(limits.timeout_s, MOST_S))),
    }
    answer = _answer(job, limits)
    problem = answer.get("error")
    if problem == "no rows":
        raise UserError("the query returns no rows; only SELECT can be run")
    if problem == "memory":
        raise UserError(f"the query needs more than {query_worker.MEMORY >> 20} MiB of memory; narrow it")
    if problem == "size":
        raise UserError(f"the result has more than {query_worker.MOST >> 20} MiB; select less, or lower --limit")
    if problem is not None:
        raise UserError(_explained(answer["reason"], limits))
    rows = tuple(tuple(map(query_worker.restored, row)) for row in answer["rows"])
    return QueryResult(tuple(answer["columns"]), rows[: limits.rows], len(rows) > limits.rows)


def _answer(job: Mapping[str, Any], limits: QueryLimits) -> dict[str, Any]:
    """The process's answer; raises UserError: the time is over, or the process ended without one."""
    script = Script(query_worker.__file__, job["seconds"] + GRACE_S, environment=os.environ)
    try:
        answer: dict[str, Any] = run_script(script, job)
    except ChildStopped as stopped:
        if stopped.limit == "time":
            raise UserError(_stopped(limits)) from stopped
        raise UserError("the query ended the process that ran it, perhaps for want of memory; narrow it") from stopped
    return answer


def _ask_postgresql(url: URL, statement: TextClause, params: Mapping[str, Any], limits: QueryLimits) -> QueryResult:
    engine = open_readonly(url)
    hung_up = threading.Event()
    compiled = statement.compile(dialect=engine.dialect)
    errors = (SQLAlchemyError, engine.dialect.loaded_dbapi.Error)
    try:
        with engine.connect() as connection, _time_limit(connection, limits, hung_up):
            _require_harmless(connection, str(statement), limits)
            driver: Any = connection.connection.driver_connection
            with driver.cursor(name="query") as cursor:
                cursor.execute(str(compiled), compiled.construct_params(dict(params)))
                rows = cursor.fetchmany(limits.rows + 1)
                columns = tuple(item.name for item in cursor.description or ())
            return QueryResult(columns, tuple(rows[: limits.rows]), len(rows) > limits.rows)
    except errors as error:
        cause = error.orig if isinstance(error, StatementError) and error.orig else error
        raise UserError(_stopped(limits) if hung_up.is_set() else _explained(str(cause), limits)) from error
    finally:
        engine.dispose()


def _require_harmless(connection: Connection, sql: str, limits: QueryLimits) -> None:
    matched = FORBIDDEN.search(sql)
    if matched is not None:
        raise UserError(f"a query may not use {matched[0].rstrip('( ')}; it reaches beyond the store's tables")
    if limits.superuser:
        return
    if connection.execute(text("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")).scalar():
        problem = "the store is opened as a superuser, whose query could read files of the server and start programs"
        raise UserError(f"{problem}; name a role with SELECT on the store's tables in --store, or add --superuser")


@contextmanager
def _time_limit(connection: Connection, limits: QueryLimits, hung_up: threading.Event) -> Iterator[None]:
    """The server stops a statement that takes too long; a server that does not answer loses the connection."""
    seconds = min(limits.timeout_s, MOST_S)
    connection.execute(text(f"SET statement_timeout = {max(1, math.ceil(1000 * seconds))}"))
    driver: Any = connection.connection.driver_connection

    def hang_up() -> None:
        hung_up.set()
        with socket.fromfd(driver.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as ours:
            ours.shutdown(socket.SHUT_RDWR)

    watch = threading.Timer(seconds + GRACE_S, hang_up)
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _explained(reason: str, limits: QueryLimits) -> str:
    line = next(iter(reason.strip().splitlines()), "no reason given")
    if "interrupted" in line or "statement timeout" in line:
        return _stopped(limits)
    if any(sign in line for sign in REFUSALS) or NO_SELECT.search(line):
        return f"only SELECT can be run: {line}"
    return f"the query failed: {line}"


def _stopped(limits: QueryLimits) -> str:
    return f"the query was stopped after {limits.timeout_s:g} s; narrow it or raise --timeout"
