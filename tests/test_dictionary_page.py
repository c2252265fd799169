"""The data dictionary describes every column of every table and view; it and the page of questions are current."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.store.tables.runs import Base
from docs.tools import ask_page, dictionary_page
from docs.tools.dictionary_words import COLUMNS, OF_TABLE, TITLES

PAGE = Path(__file__).parents[1] / "docs" / "data-dictionary.md"


def test_the_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == dictionary_page.page(), "run: make docs"


@pytest.mark.medium
def test_the_answers_on_the_page_are_those_of_the_store():
    asked = PAGE.parent / "how-to" / "ask-the-store.md"
    assert asked.read_text(encoding="utf-8") == ask_page.page(), "run: make docs"


def test_nothing_is_described_that_is_not_there():
    columns = dictionary_page.columns_of_views()
    columns |= {name: [each.name for each in table.columns] for name, table in Base.metadata.tables.items()}
    assert set(TITLES) == set(columns)
    assert set(COLUMNS) <= {name for names in columns.values() for name in names}
    assert set(OF_TABLE) <= {f"{table}.{name}" for table, names in columns.items() for name in names}
