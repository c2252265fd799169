"""Draws cases and tries them.

The cases come from `random.Random`: hypothesis draws many that are nearly equal, which helps to shrink one failure and
finds fewer causes.
"""

from __future__ import annotations

import functools
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.contract import Violation
from tests.fuzz.edits import Case, drawn, words_of
from tests.fuzz.fixtures import Fixtures, schema
from tests.fuzz.kinds import KINDS


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some cases of one kind from one seed."""

    kind: str
    cases: int
    seed: int


@dataclass(frozen=True, slots=True)
class Found:
    """A case that breaks the contract, and how."""

    case: Case
    violation: Violation


@dataclass(frozen=True, slots=True)
class Tried:
    """A chunk's outcome."""

    kind: str
    cases: int
    found: tuple[Found, ...]


@functools.cache
def fixtures_in(home: str) -> Fixtures:
    """This process's fixtures, ready: importing takes longer than any case may."""
    fixtures = Fixtures(Path(tempfile.mkdtemp(dir=home)))
    fixtures.warm()
    return fixtures


def try_case(case: Case, fixtures: Fixtures) -> Violation | None:
    """Try one case in a folder of its own."""
    folder = Path(tempfile.mkdtemp(dir=fixtures.home, prefix="case-"))
    try:
        return KINDS[case.kind].attempt(fixtures, folder, case.edits)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def try_chunk(given: tuple[Chunk, str]) -> Tried:
    """Try a chunk of cases, whatever they find; its fixtures lie in a folder inside the given one."""
    chunk, home = given
    fixtures, kind = fixtures_in(home), KINDS[chunk.kind]
    words = words_of(schema(kind.schema)) if kind.schema else frozenset()
    rng = random.Random(chunk.seed)
    found: dict[str, Found] = {}
    for _ in range(chunk.cases):
        case = drawn(kind.name, words, rng, binary=kind.binary)
        violation = try_case(case, fixtures)
        if violation is not None and violation.cause not in found:
            found[violation.cause] = shrunk(Found(case, violation), fixtures)
    return Tried(chunk.kind, chunk.cases, tuple(found.values()))


def shrunk(item: Found, fixtures: Fixtures) -> Found:
    """The case without the edits that the violation does not need."""
    for edit in item.case.edits:
        edits = tuple(other for other in item.case.edits if other is not edit)
        if edits:
            case = Case(item.case.kind, edits)
            violation = try_case(case, fixtures)
            if violation is not None and violation.cause == item.violation.cause:
                item = Found(case, violation)
    return item
