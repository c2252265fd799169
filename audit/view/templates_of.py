"""The pages' templates: those of the report with other links, and the viewer's own.

Drawings of a page are made at the same time, and equal charts are drawn once.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import cache, partial
from importlib.resources import files
from typing import Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from audit.report.html.charts import Chart, svg
from audit.report.html.registry import sections
from audit.report.html.render import Links, environment, stylesheet
from audit.store.base.canonical import sha256_json

T = TypeVar("T")


class Kept(Generic[T]):
    """At most `most` results by key, the least recently used one given up first; several threads may ask at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, T] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result of a key, made on the first call; another thread that asks meanwhile waits for it.

        A call that fails keeps nothing: the next one tries again.
        """
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            turn = self._making.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                if key in self._known:
                    return self._known[key]
            try:
                made = make()
                with self._lock:
                    self._known[key] = made
                    while len(self._known) > self._most:
                        self._known.popitem(last=False)
                return made
            finally:
                with self._lock:
                    self._making.pop(key, None)

    def forget(self, key: Hashable) -> None:
        """Let the next call make the result of a key anew."""
        with self._lock:
            self._known.pop(key, None)


LINKS: Final = Links(
    section=lambda name: name,
    request=lambda name: f"request?{urlencode({'name': name}, errors='replace')}" if "#" in name else None,
    run=lambda run: f"../{quote(run)}/{sections()[0].name}",
)
"""Relative addresses: every page of a run stands beside the others, so they are the same for all runs."""
KEPT: Final = 256
"""Drawings that a server keeps; making one takes about 50 ms."""
Begin = Callable[[Chart], Future[Markup]]


class Drawings:
    """Drawings by their charts. `begin` begins one."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._begun: Kept[Future[Markup]] = Kept(KEPT)

    def __call__(self, charts: Sequence[Chart]) -> tuple[Markup, ...]:
        """The drawings of charts, in their order. A chart that failed is tried again at the next call."""
        keys = [sha256_json(asdict(chart)) for chart in charts]
        begun = [self._begun.get(key, partial(self._begin, chart)) for key, chart in zip(keys, charts, strict=True)]
        return tuple(self._finished(key, drawing) for key, drawing in zip(keys, begun, strict=True))

    def _finished(self, key: str, drawing: Future[Markup]) -> Markup:
        try:
            return drawing.result()
        except Exception:
            self._begun.forget(key)
            raise


def drawn_here(chart: Chart) -> Future[Markup]:
    """A drawing that is finished when this returns."""
    drawing: Future[Markup] = Future()
    drawing.set_result(svg(chart))
    return drawing


def templates(begin: Begin = drawn_here) -> Environment:
    """One environment; `begin` begins a drawing."""
    made = environment(LINKS, PackageLoader("audit.view"), Drawings(begin))
    made.filters.update(address=lambda values: urlencode(dict(values), errors="replace"))
    made.globals.update(sections=sections(), first=sections()[0].name)
    return made


def compile_all(made: Environment) -> None:
    """Compile every page, so that no first visit does."""
    for name in made.list_templates(("html",)):
        made.get_template(name)


@cache
def styles() -> str:
    """The stylesheet of the report and what only the viewer has."""
    own = files("audit.view") / "templates" / "view.css"
    return f"{stylesheet()}\n{own.read_text('utf-8')}"


@cache
def icon() -> str:
    """A small drawing for the browser's tab."""
    return (files("audit.view") / "templates" / "icon.svg").read_text("utf-8")
