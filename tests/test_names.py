"""Docstrings and names: no docstring begins with "What", no module is a participle, no local is `each` or `found`."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from engine.core.registry import BACKENDS

ROOT = Path(__file__).parents[1]
PACKAGES = ("audit", "engine", "migrations", "schemas")
GLOSSARY = ROOT / "docs" / "glossary.md"
WHAT = re.compile(r'^[ \t]*[rR]?"""\s*What\s', re.MULTILINE)
VAGUE = {"each", "found"}
MAYBE = re.compile(r"\b(each|found)\b *([:=,)]|in\b)")
PLAIN = {
    "accounting": "a registered check",
    "asking": "a room of the store, beside reading and writing",
    "copying": "a family of proposers",
    "holding": "the part of a text that filters hold back",
    "honoured": "a registered check",
    "installed": "packages of the environment",
    "loading": "from names to objects in memory",
    "planning": "a noun in tree planning",
    "reading": "a room of the store; the API of stored runs; a reading of a request",
    "running": "the API of runs, beside reading",
    "seed": "a noun, and a registered check",
    "sizing": "a noun of statistics: sample sizes",
    "spooled": "columns in a spool file",
    "trained": "a family of proposers",
    "undeclared": "a theme of faults",
    "watched": "rules of the gate on a watch",
    "writing": "a room of the store",
}
"""Last words in -ing or -ed that need no entry in the glossary, with the reason."""


@functools.cache
def sources() -> Mapping[str, str]:
    return {
        str(path.relative_to(ROOT)): path.read_text("utf-8")
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }


@functools.cache
def terms() -> Mapping[str, str]:
    """The glossary's meanings by term."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    return {term.strip(): meaning for names, meaning in rows for term in names.split(",")}


def what_docstrings(files: Mapping[str, str]) -> list[str]:
    return [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
        for path, text in files.items()
        for match in WHAT.finditer(text)
    ]


def vague_locals(files: Mapping[str, str]) -> list[str]:
    """Variables and parameters named by a word that fits every value."""
    return [
        f"{path}:{node.lineno}"
        for path, text in files.items()
        if MAYBE.search(text)  # most files need no parsing
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE)
        or (isinstance(node, ast.arg) and node.arg in VAGUE)
    ]


def last_words(paths: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Paths and last words of modules named by a participle or gerund."""
    for path in paths:
        name = Path(path).parent.name if path.endswith("__init__.py") else Path(path).stem
        word = name.rpartition("_")[2]
        if word.endswith(("ing", "ed")):
            yield path, word


def unexplained(paths: Mapping[str, str]) -> list[str]:
    return [path for path, word in last_words(paths) if word not in PLAIN and word not in terms()]


def test_no_docstring_begins_with_what():
    assert what_docstrings(sources()) == []


@pytest.mark.parametrize(
    "text", ['"""What a room is."""\n', 'def late():\n    """What comes.\n    """\n', 'A = 1\nr"""\nWhat\n"""']
)
def test_a_docstring_that_begins_with_what_is_seen(text):
    (seen,) = what_docstrings({"engine/late.py": text})
    assert seen.startswith("engine/late.py:")


@pytest.mark.medium
def test_locals_are_nouns():
    assert vague_locals(sources()) == []


@pytest.mark.parametrize(
    "text", ["found = 1", "[each for each in range(3)]", "def f(each): ...", "if (found := 1): ...", "lambda each: 1"]
)
def test_a_local_that_names_nothing_is_seen(text):
    assert vague_locals({"engine/late.py": f"A = 1\n{text}\n"}) == ["engine/late.py:2"]


def test_modules_are_nouns_or_explained():
    assert unexplained(sources()) == []
    used = {word for _, word in last_words(sources())}
    assert PLAIN.keys() - used == set(), "no module has this word any more"
    assert PLAIN.keys() & terms().keys() == set(), "the glossary explains it"


@pytest.mark.parametrize("path", ["audit/store/base/late_paying.py", "engine/explored.py", "engine/pinned/__init__.py"])
def test_a_participle_is_seen(path):
    assert unexplained({**sources(), path: ""}) == [path]


def test_the_glossary_names_every_backend():
    assert set(BACKENDS) <= set(re.findall(r"\w+", terms()["backend"]))
