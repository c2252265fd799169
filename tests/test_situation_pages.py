"""Each situation of the catalogue has a section with its parts on its theme's page, and the index has a line for it."""

from __future__ import annotations

import re
from pathlib import Path

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.groups import Group
from tests.support.cases import every_case

FOLDER = Path(__file__).parents[1] / "docs" / "situations"
PARTS = ("What", "Why engines get it wrong", "How to bring it about")
SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def sections(group: str) -> dict[str, str]:
    """The sections of a theme's page, by situation."""
    return dict(SECTION.findall((FOLDER / f"{group}.md").read_text("utf-8")))


def test_every_theme_has_a_page_with_its_situations_in_the_catalogue_s_order():
    assert {path.stem for path in FOLDER.glob("*.md")} - {"index"} == set(Group)
    for group in Group:
        assert list(sections(group)) == [name for name, one in CATALOGUE.items() if one.group is group]


def test_every_situation_has_a_section_with_its_parts():
    with every_case() as case:
        for name, situation in CATALOGUE.items():
            with case(name):
                text = sections(situation.group)[name]
                assert [part for part in PARTS if f"**{part}.**" not in text] == []


def test_the_index_lists_every_situation_in_the_catalogue_s_order():
    index = (FOLDER / "index.md").read_text("utf-8")
    places = [index.index(f"]({one.group}.md#{name})") for name, one in CATALOGUE.items()]
    assert places == sorted(places)
