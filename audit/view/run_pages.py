"""Pages about one run: the sections of its report, its requests, and one request token by token."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from audit.errors import UserError
from audit.evidence.records import RequestRecord
from audit.report.generation import events, token_lines
from audit.report.html import registry
from audit.report.html.section import source_of
from audit.report.pieces import pieces_of
from audit.store import Store, StoredRun
from audit.store.browse.request_list import request_key
from audit.store.values import RequestKey
from audit.view import fields
from audit.view.page import ViewPage, ViewState
from audit.view.templates_of import rendered

PER_PAGE: Final = 50
RESERVED: Final = ("requests", "request")
"""Last parts of addresses that no section may have as its name."""


def first(state: ViewState, request: Request) -> Response:
    """The run's first section.

    Raises:
        UserError: no such run.
    """
    with state.opened() as store:
        run = store.resolve(request.path_params["run"])
    return RedirectResponse(f"/runs/{run}/{registry.sections()[0].name}", 303)


def section(state: ViewState, request: Request) -> ViewPage:
    """One section of a run's report.

    Raises:
        UserError: no such run or section.
    """
    name = request.path_params["section"]
    chosen = registry.section(name)
    with state.opened() as store:
        source = source_of(store, _whole(store, request))
        body = rendered(state.templates, source, chosen)
    return ViewPage("section_page.html", {"run": source.results.run, "here": name, "body": body})


def requests(state: ViewState, request: Request) -> ViewPage:
    """A run's requests, filtered.

    Raises:
        UserError: no such run or arm.
    """
    query = request.query_params
    wanted, back = fields.request_filter(query), bool(query.get("back"))
    cursor = fields.row(query, "back" if back else "onward")
    with state.opened() as store:
        run = store.load_run(_whole(store, request))
    with state.browser() as browser:
        page = browser.requests(run.ulid, wanted, cursor, back=back, limit=PER_PAGE)
        places = state.places.get(browser.version_of(run.ulid), lambda: browser.request_places(run.ulid))
    kept = {name: query[name] for name in ("arm", "domain", "case", "check", "divergent") if query.get(name)}
    given = {"run": run, "here": "requests", "page": page, "places": places, "wanted": wanted, "kept": kept}
    return ViewPage("requests.html", given)


def request(state: ViewState, request: Request) -> ViewPage:
    """One request, token by token.

    Raises:
        UserError: no such run or request.
        CannotDecide: its content was erased, or cannot be decoded.
    """
    name = request.query_params.get("name", "")
    with state.opened() as store:
        run = store.load_run(_whole(store, request))
        key = named(run, name)
        record = _record(store, run, key)
        lines = tuple(token_lines(record.trace))
    given = {
        "run": run,
        "here": "request",
        "key": key,
        "record": record,
        "lines": lines,
        "pieces": pieces_of(run),
        "events": tuple(events(record.trace.header.facts)),
    }
    return ViewPage("request.html", given)


def _whole(store: Store, request: Request) -> str:
    """The ULID in an address, which must be whole there."""
    name = request.path_params["run"]
    run = store.resolve(name)
    if run != name:
        raise UserError(f"no run is called {name[: fields.LONGEST]!r}; the address of a run has its whole id")
    return run


def named(run: StoredRun, name: str) -> RequestKey:
    """The request ARM/CASE#SAMPLE of a run; names of arms and cases may contain any character.

    Raises:
        UserError: no arm of the run fits.
    """
    for arm in sorted((arm.name for arm in run.arms), key=len, reverse=True):
        key = request_key(arm, name) if name.startswith(f"{arm}/") else None
        if key is not None:
            return key
    raise UserError(f"the run has no request {name[: fields.LONGEST]!r}; its list of requests has every name")


def _record(store: Store, run: StoredRun, key: RequestKey) -> RequestRecord:
    arm = store.load_arm(run.ulid, key.arm, (key,))
    for record in (*arm.requests, *arm.failed, *arm.refused):
        return record
    raise UserError(f"the run has no request {key.name[: fields.LONGEST]!r}; its list of requests has every name")
