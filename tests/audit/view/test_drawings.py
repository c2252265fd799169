"""Drawings of a page: begun together, made once, and tried again where they failed."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import pytest
from markupsafe import Markup

from audit.view.drawer import examples
from audit.view.templates_of import Drawings

CHARTS = examples()


class Together:
    """Finishes drawings only when as many as a page has are begun."""

    def __init__(self, number):
        self.number, self.begun = number, []

    def __call__(self, chart):
        drawing = Future()
        self.begun.append((chart.title, drawing))
        if len(self.begun) == self.number:
            for title, one in reversed(self.begun):
                one.set_result(Markup(title))
        return drawing


def test_the_charts_of_a_page_are_begun_together_and_stay_in_their_order():
    together = Together(len(CHARTS))
    drawings = Drawings(together)
    titles = [chart.title for chart in CHARTS]
    assert [str(drawing) for drawing in drawings(CHARTS)] == titles
    assert [str(drawing) for drawing in drawings(CHARTS)] == titles
    assert len(together.begun) == len(CHARTS)


def test_a_chart_that_failed_is_tried_again():
    begun = []

    def begin(chart):
        drawing = Future()
        begun.append(chart)
        if len(begun) == 1:
            drawing.set_exception(RuntimeError("no such mark"))
        else:
            drawing.set_result(Markup(chart.title))
        return drawing

    drawings = Drawings(begin)
    with pytest.raises(RuntimeError, match="no such mark"):
        drawings(CHARTS[:1])
    assert drawings(CHARTS[:1]) == (CHARTS[0].title,)
    assert drawings([replace(CHARTS[0])]) == (CHARTS[0].title,)
    assert len(begun) == 2
