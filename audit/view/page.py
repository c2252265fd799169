"""Sources of pages."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment
from markupsafe import Markup

from audit.errors import UserError
from audit.report.html.registry import ReportSection, ReportSource, sections
from audit.report.html.render import render_section
from audit.report.tables.results import Results, results
from audit.store import Store
from audit.store.browse.browser import Browser
from audit.store.browse.request_list import RequestPlaces
from audit.store.browse.trends import ArmSums
from audit.view.templates_of import Kept

RUNS: Final = 32
"""Runs whose results, which may be large, a server keeps."""


class LostStore(UserError):
    """The store is not there any more, or has another revision than at the start."""


@dataclass(frozen=True, slots=True)
class ViewPage:
    """A template with what it is given."""

    template: str
    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunForPage:
    """A run that a page is about, with a text that changes whenever something of it does."""

    source: ReportSource
    version: str


class ViewState:
    """The store of a server, the templates, and what it need not read again.

    The engine is kept for its compiled statements; every page opens a file anew, so it shows the file that is there
    now. Results are kept by the version of their run, counts only of runs that have ended.
    """

    def __init__(self, browser: Browser, templates: Environment) -> None:
        self.browser = browser
        self.templates = templates
        self.sums: Kept[tuple[ArmSums, ...]] = Kept(4096)
        self.places: Kept[RequestPlaces] = Kept(256)
        self._results: Kept[Results] = Kept(RUNS)
        self._bodies: Kept[Markup] = Kept(RUNS * len(sections()))
        self._ahead: Kept[threading.Thread] = Kept(RUNS)
        self._one_at_a_time = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """The store for one page.

        Raises:
            LostStore: the store cannot be opened.
            CannotDecide: the store holds a value that no page can show.
        """
        try:
            store = self.browser.again()
        except UserError as error:
            raise LostStore(str(error)) from error
        try:
            yield store
        except Exception as error:
            self.browser.blame(store, error)
            raise
        finally:
            self.browser.rest()

    def run(self, store: Store, run: str) -> RunForPage:
        """A run by its whole ULID, for pages that must come at once. Raises UserError: no such run."""
        version = self.browser.version_of(run)
        kept = self._results.get(version, lambda: results(store, run))
        return RunForPage(ReportSource(store, run, kept, brief=True), version)

    def section(self, run: RunForPage, chosen: ReportSection) -> Markup:
        """A section of a run, kept by the run's version once it has ended; never the board, where waivers expire."""
        source, version = run.source, run.version
        if source.results.run.exit_code is None:
            return render_section(source, chosen, self.templates)
        if chosen.name == sections()[0].name:
            body = render_section(source, chosen, self.templates)
        else:
            body = self._bodies.get((version, chosen.name), lambda: render_section(source, chosen, self.templates))
        # afterwards, so that the page that was asked for does not share its core
        self._ahead.get(version, lambda: self._begin(source.run))
        return body

    def _begin(self, run: str) -> threading.Thread:
        """Make the sections of a run while its reader looks at one of them: charts take a third of a second."""
        thread = threading.Thread(target=self._make_ahead, args=(run,), daemon=True, name=f"sections of {run}")
        thread.start()
        return thread

    def _make_ahead(self, run: str) -> None:
        # the reader's own request meets the same errors and names them
        with self._one_at_a_time, suppress(Exception), self.reading() as store:
            opened = self.run(store, run)
            for chosen in sections()[1:]:
                with suppress(Exception):
                    self.section(opened, chosen)
