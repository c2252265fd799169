"""Each attempt that the threat model lists has a test, which `threat_model.json` names."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = json.loads((ROOT / "tests" / "threat_model.json").read_text("utf-8"))
"""By the beginning of an attempt, the test that tries it."""


def attempts():
    """The second column of the table of attempts."""
    text = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
    table = text.partition("| who | attempt | what happens |\n|---|---|---|\n")[2].partition("\n\n")[0]
    return [line.strip("|").split("|")[1].strip() for line in table.splitlines()]


@cache
def functions_of(path):
    tree = ast.parse((ROOT / "tests" / path).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_attempt_has_a_test():
    rows = attempts()
    assert len(rows) > 50
    assert [row for row in rows if sum(map(row.startswith, TESTS)) != 1] == []
    assert [words for words in TESTS if not any(row.startswith(words) for row in rows)] == []


def test_each_test_is_there():
    places = [place.split("::") for place in TESTS.values()]
    assert [place for place in places if place[1] not in functions_of(place[0])] == []
