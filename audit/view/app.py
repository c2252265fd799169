"""The viewer as an ASGI application: addresses, pages and refusals. Starlette comes with the extra `specaudit[view]`.

Every request opens the store read-only. Whatever is wrong with an address or a store is a page with one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from audit.errors import CannotDecide, UserError
from audit.store.base.failures import StoreFailure
from audit.store.browse.browser import Browser
from audit.view import pages
from audit.view.access import Access, Guarded
from audit.view.fields import UnclearAddress
from audit.view.page import LostStore, ViewPage, ViewState
from audit.view.templates_of import icon, styles, templates

BROKEN: Final = "This page could not be made; the terminal of audit view says why."


@dataclass(frozen=True, slots=True)
class Viewer:
    """A store to show, a place for messages, and the templates."""

    browser: Browser
    report: Callable[[str], None]
    templates: Environment = field(default_factory=templates)

    def answer(self, state: ViewState, make: PageMaker, request: Request) -> Response:
        """The page of an address, or why there is none."""
        try:
            page = make(state, request)
            if isinstance(page, Response):
                return page
            return HTMLResponse(self.templates.get_template(page.template).render(page.given))
        except UnclearAddress as error:
            return self._refused(400, "Unclear address", f"{error}.")
        except LostStore as error:
            return self._refused(503, "The store cannot be read", f"{error}.")
        except UserError as error:
            return self._refused(404, "Not here", f"{error}.")
        except StoreFailure as error:
            return self._refused(503, "The store cannot be read", f"{error}.")
        except CannotDecide as error:
            return self._refused(410, "Cannot be shown", f"{error}.")
        except Exception as error:
            self.report(f"{request.url.path}: {type(error).__name__}: {error}")
            return self._refused(500, "No page", BROKEN)

    def missing(self) -> Response:
        """The answer to an address that no page has."""
        return self._refused(404, "Not here", "There is no page at this address.")

    def _refused(self, status: int, title: str, sentence: str) -> Response:
        given: Mapping[str, Any] = {"title": title, "sentence": sentence, "here": ""}
        return HTMLResponse(self.templates.get_template("refusal.html").render(given), status)


PageMaker = Callable[[ViewState, Request], "ViewPage | Response"]

PAGES: Final[Mapping[str, PageMaker]] = {
    "/": pages.runs,
    "/trends": pages.trends,
    "/diff": pages.diff,
    "/runs/{run}": pages.first,
    "/runs/{run}/": pages.first,
    "/runs/{run}/requests": pages.requests,
    "/runs/{run}/request": pages.request,
    "/runs/{run}/{section}": pages.section,
}
"""Makers of the pages by address; the first that fits counts."""


def application(viewer: Viewer, access: Access) -> ASGIApp:
    """All pages of a store behind an access."""
    state = ViewState(viewer.browser, viewer.templates)

    def page(make: PageMaker) -> Callable[[Request], Response]:
        return lambda request: viewer.answer(state, make, request)

    routes = [Route(path, page(make)) for path, make in PAGES.items()]
    routes += [
        Route("/static/style.css", lambda _request: Response(styles(), media_type="text/css")),
        Route("/static/icon.svg", lambda _request: Response(icon(), media_type="image/svg+xml")),
        Route("/favicon.ico", lambda _request: RedirectResponse("/static/icon.svg")),
    ]
    missing: Any = {404: lambda _request, _error: viewer.missing()}
    return Guarded(Starlette(routes=routes, exception_handlers=missing), access)
