"""docs/policy.md: current, and with a meaning for every key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import schemas
from docs.tools.policy_page import page, write

PAGE = Path(__file__).parents[3] / "docs" / "policy.md"


def names_of(schema: object) -> set[str]:
    """The names of all properties of a schema."""
    if isinstance(schema, list):
        return set().union(*map(names_of, schema))
    if not isinstance(schema, dict):
        return set()
    return set(schema.get("properties", ())) | names_of(list(schema.values()))


@pytest.mark.medium
def test_the_page_is_current(tmp_path):
    assert PAGE.read_text("utf-8") == page(), "run: make docs"
    write([str(tmp_path / "policy.md")], standalone_mode=False)
    assert (tmp_path / "policy.md").read_text("utf-8") == page()


def test_every_key_of_the_schema_has_a_meaning():
    rows = re.findall(r"^\| `([\w.\[\]]+)` \| (.+?) \| (yes|no) \| (.*) \|$", page(), re.MULTILINE)
    assert [key for key, _, _, meaning in rows if not meaning.strip()] == []
    shown = {part for key, _, _, _ in rows for part in re.split(r"[.\[\]]+", key)}
    titles = set(re.findall(r"^## (\w+)$", page(), re.MULTILINE))
    assert names_of(schemas.load("policy")) <= shown | titles
