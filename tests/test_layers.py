"""Folders are layers: a module imports only rooms to the left of its own, and a name means one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {
    "engine": "core sampling constraints record verify models stream heads proposers decode faults backends "
    "tools train",
    "audit": "errors text stats evidence checks suite store runs executors attest report watch gate attach sweep "
    "selftest minimize view serve api terminal commands cli",
}
ROOMS = {"engine": 15, "audit": 23}
"""The most folders and loose modules at a package's root."""
ENTRIES = {"__init__", "__main__"}
"""Modules outside the layers: one imports nothing here, the other the command only."""
RESOURCES = {"bundled"}
"""Folders of data, which nothing imports."""
WHERE = ROOT / "docs" / "where-things-go.md"


def sources(package: str) -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted((ROOT / package).rglob("*.py"))}


def imported(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, also those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


def upward(package: str, files: Mapping[str, str]) -> list[str]:
    """The imports of rooms to the right of the importing file's own."""
    order = LAYERS[package].split()
    offenders = []
    for path, text in files.items():
        room = Path(path).parts[1].removesuffix(".py")
        for line, name in imported(path, text) if room not in ENTRIES else ():
            parts = name.split(".")
            inside = parts[0] == package and len(parts) > 1 and parts[1] in order
            if inside and order.index(parts[1]) > order.index(room):
                offenders.append(f"{path}:{line} imports {name}")
    return offenders


@pytest.mark.parametrize("package", LAYERS)
def test_imports_run_to_the_left(package):
    assert upward(package, sources(package)) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("engine/sampling/rng.py", "from engine.record import trace"),
        ("engine/record/recorder.py", "from engine.decode.loop import Loop"),
        ("audit/stats/pit.py", "from audit.checks.law.check import CHECK"),
        ("audit/store/reading/reader.py", "import audit.runs.runner"),
    ],
)
def test_one_wrong_import_is_seen(path, line):
    package = path.split("/")[0]
    (offender,) = upward(package, sources(package) | {path: f"def late():\n    {line}\n"})
    assert offender.startswith(f"{path}:2 imports {line.split()[1]}")


@pytest.mark.parametrize("package", LAYERS)
def test_every_room_is_a_layer(package):
    rooms = {Path(path).parts[1].removesuffix(".py") for path in sources(package)} - ENTRIES
    rooms |= RESOURCES if package == "engine" else set()
    assert rooms == {*LAYERS[package].split()} | (RESOURCES if package == "engine" else set())
    assert len(rooms) <= ROOMS[package]
    loose = {path.name for path in (ROOT / package).glob("*.py")}
    assert loose <= {"__init__.py", "__main__.py", "cli.py", "errors.py"}


def test_a_class_name_stands_in_one_file():
    places = defaultdict(list)
    for package in LAYERS:
        for path, text in sources(package).items():
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_things_go_where_the_page_says():
    rows = re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|", WHERE.read_text("utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == [
        "a proposer",
        "a verification rule",
        "a statistic",
        "a check",
        "an output format of the gate",
        "a safety filter",
        "an engine to audit",
        "a section of the report",
        "a format of a run's verdicts",
    ]
    assert [path for _, path in rows if not (ROOT / path).exists()] == []
