"""Drawings of the viewer's pages: those of a page are made at the same time, and equal charts are drawn once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from typing import Final

from markupsafe import Markup

from audit.report.html.charts import Chart, svg
from audit.store.base.canonical import sha256_json
from audit.view.cache import Kept

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
