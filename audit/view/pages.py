"""Pages about many runs (a list, trends, the difference between two) and about one: its sections and its requests."""

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from audit.errors import UserError
from audit.evidence.records import RequestRecord
from audit.report.comparisons.run_diff import JudgedRun, run_diff, settings_diff
from audit.report.html import registry
from audit.report.requests.choice import findings_by_request
from audit.report.requests.pieces import recorded_pieces
from audit.report.requests.request_view import explored
from audit.store import Store, StoredRun
from audit.store.base.values import RequestKey
from audit.store.browse.browser import Browser
from audit.store.browse.request_list import request_key
from audit.store.browse.trends import TrendRun
from audit.view import fields, trend_charts
from audit.view.page import ViewPage, ViewState
from audit.view.trend_charts import Grouping, TrendPoint

PER_PAGE: Final = 50
RESERVED: Final = ("requests", "request")
"""Last parts of addresses that no section may have as its name."""
MOST_NAMES: Final = 200
TREND: Final = 60
"""Runs of a chart over time."""
REPEATED: Final = ("suite", "model", "engine", "actor", "end", "verdict", "since", "until")
"""Fields that a link to the next page repeats."""


def first(state: ViewState, request: Request) -> Response:
    """The run's first section. Raises UserError: no such run."""
    with state.reading() as store:
        run = store.resolve(request.path_params["run"])
    return RedirectResponse(f"/runs/{run}/{registry.sections()[0].name}", 303)


def section(state: ViewState, request: Request) -> ViewPage:
    """One section of a run's report. Raises UserError: no such run or section."""
    name = request.path_params["section"]
    chosen = registry.section(name)
    with state.reading() as store:
        opened = state.run(store, _whole(store, request))
        body = state.section(opened, chosen)
    return ViewPage("section_page.html", {"run": opened.source.results.run, "here": name, "body": body})


def requests(state: ViewState, request: Request) -> ViewPage:
    """A run's requests, filtered. Raises UserError: no such run or arm."""
    query = request.query_params
    wanted, back = fields.request_filter(query), bool(query.get("back"))
    cursor = fields.row(query, "back" if back else "onward")
    with state.reading() as store:
        browser, opened = state.browser, state.run(store, _whole(store, request))
        run = opened.source.results.run
        page = browser.requests(run.ulid, wanted, cursor, back=back, limit=PER_PAGE)
        places = state.places.get(opened.version, lambda: browser.request_places(run.ulid))
    kept = {name: query[name] for name in ("arm", "domain", "case", "check", "divergent") if query.get(name)}
    given = {"run": run, "here": "requests", "page": page, "places": places, "wanted": wanted, "kept": kept}
    return ViewPage("requests.html", given)


def request(state: ViewState, request: Request) -> ViewPage:
    """One request, token by token.

    Raises:
        UserError: no such run or request.
        CannotDecide: its content was erased, or cannot be decoded.
    """
    with state.reading() as store:
        source = state.run(store, _whole(store, request)).source
        run = source.results.run
        key = named(run, request.query_params.get("name", ""))
        result = findings_by_request(source.results.checks).get(key.name, ())
        one = explored(_record(store, run, key), recorded_pieces(store, run), result, name=key.name)
    return ViewPage("request.html", {"run": run, "here": "request", "key": key, "one": one})


def _whole(store: Store, request: Request) -> str:
    """The ULID in an address, which must be whole there."""
    name = request.path_params["run"]
    run = store.resolve(name)
    if run != name:
        raise UserError(f"no run is called {name[: fields.LONGEST]!r}; the address of a run has its whole id")
    return run


def named(run: StoredRun, name: str) -> RequestKey:
    """The request ARM/CASE#SAMPLE of a run, or CASE#SAMPLE of its first candidate, as findings write it.

    Names of arms and cases may contain any character.

    Raises:
        UserError: no arm of the run fits.
    """
    for arm in sorted((arm.name for arm in run.arms), key=len, reverse=True):
        key = request_key(arm, name) if name.startswith(f"{arm}/") else None
        if key is not None:
            return key
    key = request_key(run.candidates[0].name, name) if run.candidates else None
    if key is not None:
        return key
    raise UserError(f"the run has no request {name[: fields.LONGEST]!r}; its list of requests has every name")


def _record(store: Store, run: StoredRun, key: RequestKey) -> RequestRecord:
    arm = store.load_arm(run.ulid, key.arm, (key,))
    for record in (*arm.requests, *arm.failed, *arm.refused):
        return record
    raise UserError(f"the run has no request {key.name[: fields.LONGEST]!r}; its list of requests has every name")


def runs(state: ViewState, request: Request) -> ViewPage:
    """The list of runs."""
    query = request.query_params
    wanted, newer = fields.run_filter(query), bool(query.get("newer"))
    cursor = fields.text(query, "newer" if newer else "older")
    with state.reading():
        page = state.browser.runs(wanted, cursor, newer=newer, limit=PER_PAGE)
        names = state.browser.run_names(MOST_NAMES)
    kept = {name: query[name] for name in REPEATED if query.get(name)}
    given = {"page": page, "names": names, "wanted": wanted, "kept": kept, "here": "runs"}
    return ViewPage("runs.html", given)


def trends(state: ViewState, request: Request) -> ViewPage:
    """Verdicts and acceptance over runs."""
    query = request.query_params
    wanted = fields.run_filter(query)
    by = fields.choice(query, "by", Grouping) or Grouping.SUITE
    with state.reading():
        browser = state.browser
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
    with state.reading() as store:
        a, b = (state.run(store, store.resolve(given[name])).source.results for name in ("a", "b"))
        tokens = sum(shown.run.tokens or 0 for shown in (a, b))
        if whole:
            difference = run_diff(store, a.run.ulid, b.run.ulid)
        else:
            difference = settings_diff(*(JudgedRun(shown.run, shown.checks) for shown in (a, b)))
    return ViewPage("diff.html", given | {"diff": difference, "whole": whole, "tokens": tokens})
