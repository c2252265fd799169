"""Stored runs as plain lists and dicts. Each call opens the store read-only and closes it again.

For notebooks: a run as an HTML table without script, and rows as pandas data frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from audit.errors import UserError, needs
from audit.evidence.records import RequestRecord
from audit.report.tables.verdicts import ARMS, VERDICTS, arm_rows, conclusion, faults_of, marked, verdict_rows
from audit.store import RunSummary, Store, StoredCheck, StoredRun, default_url
from audit.store.asking.queries import named
from audit.store.asking.query_sandbox import QueryLimits, QueryResult, ask
from audit.text.unsafe import shortened, visible
from engine.core.types import Role

if TYPE_CHECKING:
    from pandas import DataFrame

    from engine.record.trace import StepView, Trace

TIMEOUT_S: Final = 30.0
MOST_ROWS: Final = 1_000_000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoreView:
    """Read access to a provenance store at a path or URL. With `superuser`, `sql` runs as one too."""

    url: str
    superuser: bool = False

    def runs(self, limit: int = 20) -> tuple[RunSummary, ...]:
        """The stored runs, newest first."""
        with self.opened() as store:
            return store.list_runs(limit)

    def run(self, name: str = "latest") -> RunResult:
        """Return a run by its id, an unambiguous prefix of it, or `latest`.

        Raises:
            UserError: no run matches, or several do.
        """
        with self.opened() as store:
            return RunResult(store.resolve(name), self)

    def query(self, name: str, run: str = "latest", **params: Any) -> list[Row]:
        """Return the rows of a named query (`audit query --list`).

        Raises:
            UserError: the query is unknown or has no such parameter.
        """
        sql, given = named(name, params)
        with self.opened() as store:
            given["run"] = store.resolve(run)
        # a named query is our own
        return _named_rows(self._ask(sql, given, trusted=True))

    def sql(self, text: str, **params: Any) -> list[Row]:
        """Return the rows of one SELECT; `:name` marks a parameter.

        Raises:
            UserError: the text is not a SELECT or is invalid, or it returns too many rows for a list.
        """
        return _named_rows(self._ask(text, params, trusted=self.superuser))

    def _ask(self, text: str, params: Mapping[str, Any], *, trusted: bool) -> QueryResult:
        rows = ask(self.url, text, params, QueryLimits(TIMEOUT_S, MOST_ROWS, trusted))
        if rows.cut:
            raise UserError(f"the query has more than {MOST_ROWS} rows; add a LIMIT")
        return rows

    def opened(self) -> Store:
        """The store, opened for reading."""
        return Store.open(self.url, create=False, read_only=True)


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of a store."""

    id: str
    store: StoreView

    @property
    def exit_code(self) -> int | None:
        """The exit code of `audit run`: 0, 1 or 3; None if the run has not ended."""
        return self.record().exit_code

    @property
    def passed(self) -> bool:
        """True if every check that applies is certified."""
        return self.exit_code == 0

    def record(self) -> StoredRun:
        """The run's stored record without its requests."""
        with self.store.opened() as store:
            return store.load_run(self.id)

    def checks(self) -> tuple[StoredCheck, ...]:
        """One result per arm and check, with findings and details."""
        with self.store.opened() as store:
            return store.checks(self.id)

    def verdicts(self) -> list[Row]:
        """The verdict table that `audit run` prints, a dict per row."""
        return [dict(zip(VERDICTS, row, strict=True)) for row in verdict_rows(self.checks())]

    def arms(self) -> list[Row]:
        """The table of arms that `audit run` prints, a dict per row; `fault` says how an arm is broken on purpose."""
        arms = self.record().arms
        rows = zip(arms, arm_rows(arms), strict=True)
        return [{**dict(zip(ARMS, row, strict=True)), "fault": arm.fault} for arm, row in rows]

    def query(self, name: str, **params: Any) -> list[Row]:
        """The rows of a named query about this run; raises as `StoreView.query`."""
        return self.store.query(name, self.id, **params)

    def frame(self, name: str, **params: Any) -> DataFrame:
        """The rows of a named query about this run as a pandas data frame.

        Raises:
            UserError: pandas is not installed, or as `StoreView.query`.
        """
        return frame(self.query(name, **params))

    def acceptance(self) -> DataFrame:
        """Acceptance by arm and domain, as a data frame; raises as `frame`."""
        return self.frame("acceptance")

    def positions(self) -> DataFrame:
        """Acceptance by arm and draft position, as a data frame; raises as `frame`."""
        return self.frame("positions")

    def lengths(self) -> DataFrame:
        """How many steps emitted how many tokens, by arm, as a data frame; raises as `frame`."""
        return self.frame("steps")

    def _repr_html_(self) -> str:
        return html_of(self.record(), self.checks())

    def requests(self, arm: str) -> Sequence[RequestRecord]:
        """All requests of an arm; traces are loaded on access. Raises UserError: the run has no such arm."""
        with self.store.opened() as store:
            return store.load_arm(self.id, arm).requests

    def trace(self, arm: str, case: str, sample: int = 0) -> Trace:
        """Return the record of one request as columns. Raises UserError: the run has no such arm or request."""
        wanted = f"{case}#{sample}"
        requests = self.requests(arm)
        for request in requests:
            if request.key == wanted:
                return request.trace
        known = ", ".join(request.key for request in requests[:3])
        raise UserError(f"arm {arm} has no request {wanted!r}; it begins with: {known or 'none'}")

    def steps(self, arm: str, case: str, sample: int = 0) -> list[Row]:
        """One dict per step of a request: start position, drafted and emitted tokens, and the reason for each token."""
        # imported lazily: reading verdicts needs no numpy
        from engine.record.trace import steps_of

        trace = self.trace(arm, case, sample)
        return [_step(trace, step) for step in steps_of(trace)]


def open_store(store: str | None = None, *, superuser: bool = False) -> StoreView:
    """Open the store at a path or URL; by default `AUDIT_STORE`, else the one in the user's data folder.

    Args:
        store: path or URL.
        superuser: run the caller's SQL even as a superuser of PostgreSQL, whose queries can read files of the server.

    Raises:
        UserError: there is no store, or it has another revision.
    """
    url = store or default_url()
    Store.open(url, create=False, read_only=True).close()
    return StoreView(url, superuser)


def _named_rows(rows: QueryResult) -> list[Row]:
    return [dict(zip(rows.columns, row, strict=True)) for row in rows.rows]


def _step(trace: Trace, step: StepView) -> Row:
    roles = [Role(role).name.lower() for role in trace.role[step.emitted].tolist()]
    return {
        "step": step.index,
        "position": step.position,
        "drafted": trace.node_token[step.nodes].tolist(),
        "accepted": roles.count("accepted"),
        "emitted": trace.token[step.emitted].tolist(),
        "roles": roles,
    }


LONGEST_CELL: Final = 500
MOST_VERDICTS: Final = 200
STYLES: Final[Mapping[str, str]] = {
    "certified": "color:#1a7f37;font-weight:600",
    "fault": "color:#d1242f;font-weight:600",
    "inconclusive": "color:#9a6700;font-weight:600",
}


def html_of(run: StoredRun, checks: Sequence[StoredCheck]) -> str:
    """A heading and the table of verdicts; every text is escaped, and invisible characters show."""
    rows = marked(verdict_rows(checks), faults_of(run.arms))
    head = "".join(f"<th style='text-align:left'>{_safe(name)}</th>" for name in VERDICTS)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MOST_VERDICTS])
    more = f"<p>{len(rows) - MOST_VERDICTS} more verdicts: verdicts()</p>" if len(rows) > MOST_VERDICTS else ""
    name = f"run <code>{_safe(run.ulid)}</code> of {_safe(run.suite_name)}"
    title = f"<b>{_safe(conclusion(run.exit_code))}</b><br>{name}"
    return f"<div><p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}</div>"


def frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Rows as a data frame. Raises UserError: pandas is not installed."""
    with needs("notebook"):
        import pandas
    return pandas.DataFrame(list(rows))


def _cell(value: object) -> str:
    style = STYLES.get(str(value), "")
    return f"<td style='text-align:left;{style}'>{_safe(value)}</td>"


def _safe(value: object) -> str:
    return escape(visible(shortened(str(value), LONGEST_CELL)))
