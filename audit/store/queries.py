"""Read-only SQL queries on the store: the named ones and the caller's own.

Named queries use the documented views and tables.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import URL, Connection, TextClause, text
from sqlalchemy.exc import SQLAlchemyError, StatementError

from audit.errors import UserError
from audit.store.connection import is_sqlite, open_readonly, parse_url

ALLOWED: Final = frozenset(
    (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
)
"""SQLite actions allowed to a caller's query: no ATTACH, no PRAGMA, no writes."""
TABLE_FUNCTIONS: Final = ("json_each", "json_tree")
"""Table-valued functions of SQLite that a caller may use."""
REFUSALS: Final = ("not authorized", "read-only transaction", "within a transaction")
"""Fragments of the databases' messages on a statement that would write."""
PROGRESS_STEPS: Final = 10_000
"""Virtual machine instructions between two readings of the clock, well under a millisecond."""


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A named query. `params` holds the defaults of its parameters other than `run`."""

    title: str
    sql: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of a query; `cut` is true if it had more rows than the limit."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    cut: bool


ACCEPTANCE: Final = """
SELECT arm, domain, requests, n_steps, n_drafted, n_accepted, n_output, draft_acceptance_rate, tokens_per_step
FROM v_acceptance WHERE run = :run ORDER BY arm, domain
"""

# Every position counts in every step with drafts, so that the rates are
# unconditional: P(position kept) = P(at least that many kept).
POSITIONS: Final = """
WITH RECURSIVE
steps AS (
  SELECT v_request.arm AS arm, decode_step.n_drafted, decode_step.n_accepted
  FROM decode_step JOIN v_request ON v_request.request_id = decode_step.request_id
  WHERE v_request.run = :run AND decode_step.n_drafted > 0
),
position(i) AS (
  SELECT 1 UNION ALL SELECT i + 1 FROM position WHERE i < (SELECT MAX(n_drafted) FROM steps)
)
SELECT arm, i AS position, COUNT(*) AS drafts,
       CAST(SUM(CASE WHEN n_drafted >= i THEN 1 ELSE 0 END) AS BIGINT) AS drafted_here,
       CAST(SUM(CASE WHEN n_accepted >= i THEN 1 ELSE 0 END) AS BIGINT) AS kept,
       CAST(SUM(CASE WHEN n_accepted >= i THEN 1 ELSE 0 END) AS DOUBLE PRECISION) / COUNT(*) AS rate
FROM steps CROSS JOIN position GROUP BY arm, i ORDER BY arm, i
"""

DIVERGENT: Final = """
SELECT candidate.arm, baseline.arm AS baseline, candidate.case_id, candidate.sample, candidate.domain,
       baseline.n_output AS baseline_tokens, candidate.n_output AS tokens
FROM v_request AS candidate
JOIN v_request AS baseline
  ON baseline.run = candidate.run AND baseline.case_id = candidate.case_id AND baseline.sample = candidate.sample
 AND baseline.sampling_sha256 = candidate.sampling_sha256 AND baseline.arm_kind = 'baseline'
WHERE candidate.run = :run AND candidate.arm_kind <> 'baseline'
  AND candidate.output_sha256 <> baseline.output_sha256
ORDER BY candidate.arm, candidate.case_id, candidate.sample
"""

SLOW: Final = """
SELECT arm, case_id, sample, domain, n_output, n_steps, latency_us,
       CAST(latency_us AS DOUBLE PRECISION) / NULLIF(n_output, 0) AS us_per_token
FROM v_request WHERE run = :run ORDER BY latency_us DESC, arm, case_id, sample LIMIT :limit
"""

# `v_request` has no number of steps for an endpoint's arm, whose record has one step per token
STEPS: Final = """
SELECT v_request.arm, decode_step.n_emitted AS tokens_in_step, COUNT(*) AS steps
FROM decode_step JOIN v_request ON v_request.request_id = decode_step.request_id
WHERE v_request.run = :run AND v_request.n_steps IS NOT NULL GROUP BY v_request.arm, decode_step.n_emitted
ORDER BY v_request.arm, decode_step.n_emitted
"""

REJECTED: Final = """
SELECT arm, case_id, sample, domain, n_drafted, n_accepted,
       CAST(n_accepted AS DOUBLE PRECISION) / n_drafted AS draft_acceptance_rate
FROM v_request WHERE run = :run AND n_drafted > 0
ORDER BY draft_acceptance_rate, n_drafted DESC, arm, case_id, sample LIMIT :limit
"""

CHECKS: Final = """
SELECT arm, check_name, claim, verdict, level, n, effect, bound, margin, p_value, summary
FROM v_check WHERE run = :run ORDER BY arm, check_name
"""

COVERAGE: Final = """
SELECT arm, check_name, situation, occurred, examined, least, short
FROM v_coverage WHERE run = :run ORDER BY arm, check_name, situation
"""

DRAFT_VERSIONS: Final = """
SELECT arm, draft_version, draft_sha256, n_requests, n_steps, n_drafted, n_accepted, draft_acceptance_rate
FROM v_draft_version WHERE run = :run ORDER BY arm, draft_version, draft_sha256
"""

LIMIT: Final = MappingProxyType({"limit": 20})

NAMED: Final[Mapping[str, NamedQuery]] = MappingProxyType(
    {
        "acceptance": NamedQuery("accepted and emitted tokens by arm and domain", ACCEPTANCE),
        "checks": NamedQuery("verdicts by arm and check", CHECKS),
        "coverage": NamedQuery("situations that each check examined, by arm", COVERAGE),
        "divergent": NamedQuery("requests whose output differs from a baseline at the same sampling", DIVERGENT),
        "draft_versions": NamedQuery("accepted tokens by version of a draft that learns", DRAFT_VERSIONS),
        "positions": NamedQuery("unconditional acceptance by draft position", POSITIONS),
        "rejected": NamedQuery("requests with the lowest draft acceptance rate", REJECTED, LIMIT),
        "slow": NamedQuery("requests with the largest latency", SLOW, LIMIT),
        "steps": NamedQuery("how many steps emitted how many tokens", STEPS),
    }
)


def named(name: str, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A named query's SQL and its parameters; the caller's values override the defaults.

    Raises:
        UserError: unknown query or unknown parameter.
    """
    if name not in NAMED:
        # imported with the first mistake
        import difflib

        near = difflib.get_close_matches(name, NAMED, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"no query {name!r}; {hint}there are: {', '.join(NAMED)}")
    query = NAMED[name]
    accepted = {"run", *query.params}
    for key in given:
        if key not in accepted:
            raise UserError(f"query {name!r} has no parameter {key!r}; it has: {', '.join(sorted(accepted))}")
    return query.sql, {**query.params, **given}


def ask(url: str, sql: str, params: Mapping[str, Any], *, timeout_s: float, limit: int) -> QueryResult:
    """Run one SELECT that cannot write.

    Args:
        url: a store's path or URL.
        sql: one statement; parameters are written `:name`.
        params: their values.
        timeout_s: seconds after which the query is stopped.
        limit: rows to return at most.

    Raises:
        UserError: not a SELECT, an SQL error, a missing parameter, or a timeout.
    """
    target = parse_url(url)
    engine = open_readonly(target)
    try:
        with engine.connect() as connection, _limits(connection, target, timeout_s):
            result = connection.execute(_statement(sql, params), dict(params))
            if not result.returns_rows:
                raise UserError("the query returns no rows; only SELECT can be run")
            found = [tuple(row) for row in result.fetchmany(limit + 1)]
            return QueryResult(tuple(result.keys()), tuple(found[:limit]), len(found) > limit)
    except (SQLAlchemyError, sqlite3.Warning) as error:
        raise UserError(_explained(error, timeout_s)) from error
    finally:
        engine.dispose()


def _statement(sql: str, params: Mapping[str, Any]) -> TextClause:
    statement = text(sql)
    wanted = set(statement.compile().params)
    for name in sorted(wanted - set(params)):
        raise UserError(f"the query needs a value for :{name}; give --param {name}=VALUE")
    for name in sorted(set(params) - wanted):
        raise UserError(f"the query has no parameter :{name}; leave out --param {name}=...")
    return statement


@contextmanager
def _limits(connection: Connection, url: URL, timeout_s: float) -> Iterator[None]:
    """Stop writes and long queries on one connection."""
    if not is_sqlite(url):
        connection.execute(text(f"SET statement_timeout = {int(timeout_s * 1000)}"))
        yield
        return
    driver = connection.connection.driver_connection
    if not isinstance(driver, sqlite3.Connection):
        raise TypeError("an SQLite store must be read through sqlite3")
    connection.begin()
    for function in TABLE_FUNCTIONS:  # the first use declares a table, which the authorizer would later refuse
        driver.execute(f"SELECT 1 FROM {function}('[]')")
    deadline = time.monotonic() + timeout_s
    driver.set_progress_handler(lambda: int(time.monotonic() > deadline), PROGRESS_STEPS)
    driver.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY)
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)
        driver.set_authorizer(None)


def _explained(error: Exception, timeout_s: float) -> str:
    """One line for an error of the database."""
    cause = error.orig if isinstance(error, StatementError) and error.orig else error
    reason = str(cause).strip().splitlines()[0]
    if "interrupted" in reason or "statement timeout" in reason:
        return f"the query was stopped after {timeout_s:g} s; narrow it or raise --timeout"
    if any(sign in reason for sign in REFUSALS):
        return f"only SELECT can be run: {reason}"
    return f"the query failed: {reason}"
