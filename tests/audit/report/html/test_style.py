"""The stylesheet: contrast of WCAG AA in light, dark and print, and nothing fetched."""

from __future__ import annotations

import re

from audit.report.html.render import stylesheet
from tests.support.contrast import contrast

TEXT = 4.5
DRAWN = 3.0
"""Smallest contrast of text and of lines that carry a meaning (WCAG 2.2, 1.4.3 and 1.4.11)."""
PAIRS = {
    "ink": ("paper", "raised", "good-back", "open-back", "bonus-back"),
    "quiet": ("paper", "raised"),
    "link": ("paper", "raised", "bonus-back"),
    "good": ("good-back", "paper"),
    "bad": ("bad-back", "paper", "raised"),
    "open": ("open-back", "paper"),
    "none": ("none-back", "paper"),
}


def test_text_and_drawings_have_contrast_in_light_dark_and_print():
    palettes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6})", block))
        for block in re.findall(r":root \{(.*?)\}", stylesheet(), re.DOTALL)
    ]
    assert len(palettes) == 3
    faint = []
    for place, palette in enumerate(palettes):
        for text, papers in PAIRS.items():
            faint += [(place, text, paper) for paper in papers if contrast(palette[text], palette[paper]) < TEXT]
        series = [name for name in palette if name.startswith("series-")]
        assert len(series) == 6
        faint += [(place, name) for name in series if contrast(palette[name], palette["paper"]) < DRAWN]
    assert faint == []


def test_the_contrast_of_black_on_white_is_21():
    assert round(contrast("#000", "#ffffff"), 6) == 21.0


def test_nothing_is_fetched():
    assert re.findall(r"url\(|@import|https?:", stylesheet()) == []
