"""Pages about one run: the sections of its report, its requests, and one request token by token."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from audit.errors import UserError
from audit.evidence.records import RequestRecord
from audit.report.html import registry
from audit.report.requests.choice import findings_by_request
from audit.report.requests.pieces import recorded_pieces
from audit.report.requests.request_view import explored
from audit.store import Store, StoredRun
from audit.store.base.values import RequestKey
from audit.store.browse.request_list import request_key
from audit.view import fields
from audit.view.page import ViewPage, ViewState

PER_PAGE: Final = 50
RESERVED: Final = ("requests", "request")
"""Last parts of addresses that no section may have as its name."""


def first(state: ViewState, request: Request) -> Response:
    """The run's first section.

    Raises:
        UserError: no such run.
    """
    with state.reading() as reading:
        run = reading.store.resolve(request.path_params["run"])
    return RedirectResponse(f"/runs/{run}/{registry.sections()[0].name}", 303)


def section(state: ViewState, request: Request) -> ViewPage:
    """One section of a run's report.

    Raises:
        UserError: no such run or section.
    """
    name = request.path_params["section"]
    chosen = registry.section(name)
    with state.reading() as reading:
        opened = state.run(reading, _whole(reading.store, request))
        body = state.section(opened, chosen)
    return ViewPage("section_page.html", {"run": opened.source.results.run, "here": name, "body": body})


def requests(state: ViewState, request: Request) -> ViewPage:
    """A run's requests, filtered.

    Raises:
        UserError: no such run or arm.
    """
    query = request.query_params
    wanted, back = fields.request_filter(query), bool(query.get("back"))
    cursor = fields.row(query, "back" if back else "onward")
    with state.reading() as reading:
        browser, opened = reading.browser, state.run(reading, _whole(reading.store, request))
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
    with state.reading() as reading:
        store = reading.store
        source = state.run(reading, _whole(store, request)).source
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
