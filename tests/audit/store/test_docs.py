"""docs/store.md names what there is, and nothing that is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import inspect

from audit.store import migrate
from audit.store.asking.queries import NAMED
from audit.store.tables.runs import Base
from tests.audit.store.build import connected

PAGE = (Path(__file__).parents[3] / "docs" / "store.md").read_text(encoding="utf-8")


def rows_of(section: str) -> dict[str, str]:
    """First cell (its code) to the whole line, of the table under a heading."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    return {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*$", text, re.MULTILINE)}


def test_every_table_is_described_with_its_columns():
    described = rows_of("Tables")
    assert set(described) == set(Base.metadata.tables)
    for name, table in Base.metadata.tables.items():
        plain = [each.name for each in table.columns if each.name != "id" and not each.name.endswith("_id")]
        absent = [column for column in plain if not re.search(rf"\b{column}\b", described[name])]
        assert absent == [], name


@pytest.mark.medium
def test_every_view_is_described(tmp_path):
    url = str(tmp_path / "audit.db")
    migrate.upgrade(url)
    with connected(url) as connection:
        assert set(inspect(connection).get_view_names()) == set(rows_of("Views"))


@pytest.mark.parametrize("name", list(NAMED))
def test_every_named_query_is_described(name):
    assert name in rows_of("Questions")


def test_no_query_is_described_that_is_not_there():
    assert set(rows_of("Questions")) == set(NAMED)
