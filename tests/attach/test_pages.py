"""The commands of docs/integrations and of docs/how-to/evaluate.md print what the pages show (`make test-attach`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attach.transcripts import ROOT, changes, parts, rewritten

PAGES = (*sorted((ROOT / "docs" / "integrations").glob("*.md")), ROOT / "docs" / "how-to" / "evaluate.md")
PARTS = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, text in enumerate(parts(page))
    if "```console\n" in text
]
pytestmark = pytest.mark.attach


@pytest.mark.parametrize("text", PARTS)
def test_a_part_shows_what_its_commands_print(text: str, deployment: Path) -> None:
    assert changes(text, rewritten(text, deployment)) == [], "run: make docs-integrations"


def test_changed_words_and_numbers_are_seen() -> None:
    page = "run 01M86M230Y7MDW7Y4FS0DF0GXQ: 5 of 100 in 3.2 s, sha256:" + "a1" * 32
    assert changes(page, page.replace("GXQ", "GXR").replace("a1", "b2").replace("3.2 s", "9 s")) == []
    assert changes(page, page.replace("of", "off")) != []
    assert changes(page, page.replace("100", "150")) != []
