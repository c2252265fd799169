"""docs/promises.md has the figures that the tests wrote, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from docs.tools.promises_page import page, table

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "promises.md").read_text("utf-8")


def test_the_page_has_the_figures():
    assert page(PAGE) == PAGE
    assert table().startswith("| test |")


def test_the_page_names_tests_that_exist():
    paths = set(re.findall(r"`(tests/[a-z_/]+\.[a-z]+)`", PAGE + (ROOT / "SECURITY.md").read_text("utf-8")))
    assert len(paths) > 5
    assert [path for path in sorted(paths) if not (ROOT / path).is_file()] == []
