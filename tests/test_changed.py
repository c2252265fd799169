"""Tests of the rooms that changed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support import changed
from tests.support.share import Share


def items(*names):
    return [SimpleNamespace(nodeid=name) for name in names]


def test_a_changed_module_selects_the_tests_of_its_room(monkeypatch):
    monkeypatch.setattr(changed, "changed_files", lambda _commit: ["engine/verify/chain.py", "tests/test_docs.py"])
    tests = items("tests/engine/verify/test_a.py::b", "tests/engine/decode/test_a.py::b", "tests/test_docs.py::c")
    assert changed.changed(tests, "abc") == [tests[0], tests[2]]


def test_pages_and_helpers_select_nothing():
    assert changed.rooms(["README.md", "docs/index.md", "tests/support/share.py", "audit/cli.py"]) == frozenset()


def test_migrations_and_schemas_have_rooms():
    files = ["migrations/versions/0001_first.py", "schemas/gate.json"]
    assert changed.rooms(files) == {"tests/migrations/", "tests/schemas/"}


def test_nothing_changed_selects_nothing(monkeypatch):
    monkeypatch.setattr(changed, "changed_files", lambda _commit: [])
    assert changed.changed(items("tests/engine/verify/test_a.py::b"), "abc") == []


def test_an_unknown_commit_is_one_line():
    with pytest.raises(pytest.UsageError, match=r"^--since nonesuch: fatal: "):
        changed.changed_files("nonesuch")


@pytest.mark.parametrize(
    ("count", "share"), [(0, Share(1, 1)), (50, Share(1, 1)), (51, Share(2, 2)), (500, Share(8, 10))]
)
def test_many_tests_are_cut_to_a_share_that_the_seed_names(count, share):
    assert changed.share_of(count, "50:7") == share


def test_a_wrong_number_is_one_line():
    with pytest.raises(pytest.UsageError, match=r"^--most 5: write N:SEED"):
        changed.share_of(1, "5")
