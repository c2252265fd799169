"""Chromium of the distribution, driven by Playwright, with an eye on everything that a page should not do."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser as Chrome
from playwright.sync_api import ConsoleMessage, Dialog, Locator, Page, Request

from audit.commands.operate.view import listening
from audit.store.browse.browser import Browser
from audit.view.access import new_access
from audit.view.app import Viewer, application

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
WIDTHS = (1440, 768, 390)
SCREENSHOTS = Path("build") / "screenshots"
GRAVE = {"serious", "critical"}
RUNNER = Axe()
BREADTH = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@dataclass(frozen=True)
class Served:
    """A running viewer: its origin, the address that lets a browser in, and what it reported."""

    origin: str
    address: str
    reported: list[str]


@contextmanager
def served(store: str) -> Iterator[Served]:
    """A viewer of a store, in a thread."""
    with Browser.open(store, create=False, read_only=True) as browser, listening(0) as listener:
        access = new_access(listener.getsockname()[1])
        reported: list[str] = []
        app = application(Viewer(browser, reported.append), access)
        server = uvicorn.Server(uvicorn.Config(app, access_log=False, lifespan="off", log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield Served(f"http://127.0.0.1:{access.port}", access.address, reported)
        server.should_exit = True
        thread.join(10)


@dataclass
class Watched:
    """One tab. `troubles`: errors on the console, dialogs, failures, and requests outside the origin."""

    page: Page
    origin: str
    troubles: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._request)
        self.page.on("requestfailed", self._failed)

    def _failed(self, request: Request) -> None:
        # leaving a page ends what it still loads
        if request.failure != "net::ERR_ABORTED":
            self.troubles.append(f"failed: {request.url}: {request.failure}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Dialog) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if not request.url.startswith(self.origin):
            self.troubles.append(f"outside: {request.url}")

    def go(self, path: str) -> int:
        """Open a path of the origin; the status of the answer."""
        answer = self.page.goto(f"{self.origin}{path}")
        assert answer is not None
        return answer.status

    def follow(self, link: Locator) -> None:
        """Click a link or a button, and wait for the page to which it leads: a click alone returns before."""
        with self.page.expect_navigation():
            link.click()

    def grave(self, theme: str) -> list[str]:
        """The serious and critical violations that axe-core sees in a theme."""
        self.page.emulate_media(color_scheme=theme)
        found = RUNNER.run(self.page, options={"preload": False, "resultTypes": ["violations"]})
        return [
            f"{theme}: {one['id']}: {node['html'][:200]}"
            for one in found.response["violations"]
            if one["impact"] in GRAVE
            for node in one["nodes"][:3]
        ]

    def pictures(self, name: str, *, whole: bool = True) -> list[str]:
        """Screenshots at every width; the widths at which the page is broader than the window."""
        broad = []
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 900})
            if self.page.evaluate(BREADTH) > 0:
                broad.append(f"{name} is broader than {width}")
            self.page.screenshot(path=SCREENSHOTS / f"{name}-{width}.png", full_page=whole)
        self.page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        return broad


@contextmanager
def watching(chrome: Chrome, viewer: Served) -> Iterator[Watched]:
    """A tab that entered a viewer as a user does."""
    context = chrome.new_context(viewport={"width": WIDTHS[0], "height": 900})
    try:
        tab = Watched(context.new_page(), viewer.origin)
        tab.page.goto(viewer.address)
        tab.page.wait_for_url(f"{viewer.origin}/")
        yield tab
    finally:
        context.close()
