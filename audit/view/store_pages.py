"""Pages about many runs: their list, trends, and the difference between two."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from audit.report.comparisons.run_diff import JudgedRun, run_diff, settings_diff
from audit.store.browse.browser import Browser
from audit.store.browse.trends import TrendRun
from audit.view import fields, trend_charts
from audit.view.page import ViewPage, ViewState
from audit.view.trend_charts import Grouping, TrendPoint

PER_PAGE: Final = 50
MOST_NAMES: Final = 200
TREND: Final = 60
"""Runs of a chart over time."""
KEPT: Final = ("suite", "model", "engine", "actor", "end", "verdict", "since", "until")
"""Fields that a link to the next page repeats."""


def runs(state: ViewState, request: Request) -> ViewPage:
    """The list of runs."""
    query = request.query_params
    wanted, newer = fields.run_filter(query), bool(query.get("newer"))
    cursor = fields.text(query, "newer" if newer else "older")
    with state.reading() as reading:
        page = reading.browser.runs(wanted, cursor, newer=newer, limit=PER_PAGE)
        names = reading.browser.run_names(MOST_NAMES)
    given = {"page": page, "names": names, "wanted": wanted, "kept": _kept(request), "here": "runs"}
    return ViewPage("runs.html", given)


def trends(state: ViewState, request: Request) -> ViewPage:
    """Verdicts and acceptance over runs."""
    query = request.query_params
    wanted = fields.run_filter(query)
    by = fields.choice(query, "by", Grouping) or Grouping.SUITE
    with state.reading() as reading:
        browser = reading.browser
        points = [_point(state, browser, run) for run in browser.trend_runs(wanted, TREND)]
        names = browser.run_names(MOST_NAMES)
    drawn = trend_charts.trends(points, by, fields.text(query, "arm"))
    given = {"trends": drawn, "names": names, "wanted": wanted, "by": by, "arm": fields.text(query, "arm")}
    return ViewPage("trends.html", given | {"most": TREND, "here": "trends"})


def _point(state: ViewState, browser: Browser, run: TrendRun) -> TrendPoint:
    if not run.ended:
        return TrendPoint(run, browser.arm_sums(run.ulid))
    return TrendPoint(run, state.sums.get(run.ulid, lambda: browser.arm_sums(run.ulid)))


def diff(state: ViewState, request: Request) -> ViewPage:
    """The difference between two runs; their records are compared if the address says so, because that takes long.

    Raises:
        UserError: no such run.
        CannotDecide: a trace is missing or cannot be decoded.
    """
    query = request.query_params
    given = {"a": fields.text(query, "a"), "b": fields.text(query, "b"), "here": "diff"}
    if not (given["a"] and given["b"]):
        return ViewPage("diff.html", given | {"diff": None})
    whole = bool(query.get("whole"))
    with state.reading() as reading:
        store = reading.store
        a, b = (state.run(reading, store.resolve(given[name])).source.results for name in ("a", "b"))
        tokens = sum(shown.run.tokens or 0 for shown in (a, b))
        if whole:
            difference = run_diff(store, a.run.ulid, b.run.ulid)
        else:
            difference = settings_diff(*(JudgedRun(shown.run, shown.checks) for shown in (a, b)))
    return ViewPage("diff.html", given | {"diff": difference, "whole": whole, "tokens": tokens})


def _kept(request: Request) -> dict[str, str]:
    return {name: request.query_params[name] for name in KEPT if request.query_params.get(name)}
