"""Each situation of the catalogue has a page with its parts, and the index has a line for it."""

from __future__ import annotations

from pathlib import Path

from audit.evidence.coverage.catalogue import CATALOGUE
from tests.support.cases import every_case

FOLDER = Path(__file__).parents[1] / "docs" / "situations"
PARTS = ("What", "How to bring it about")


def test_every_situation_has_a_page():
    assert {path.stem for path in FOLDER.glob("*.md")} - {"index"} == set(CATALOGUE)
    with every_case() as case:
        for name in CATALOGUE:
            with case(name):
                page = (FOLDER / f"{name}.md").read_text("utf-8")
                assert page.startswith(f"# {name}\n")
                assert all(part in page for part in PARTS)


def test_the_index_lists_every_situation_in_the_catalogue_s_order():
    index = (FOLDER / "index.md").read_text("utf-8")
    places = [index.index(f"]({name}.md)") for name in CATALOGUE]
    assert places == sorted(places)
