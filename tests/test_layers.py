"""Folders are layers: a module imports only rooms to the left of its own, and a name means one thing."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
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
ENTRIES = {"__init__", "__main__", "distribution"}
"""Modules outside the layers: one imports nothing here, the other the command only."""
RESOURCES = {"bundled"}
"""Folders of data, which nothing imports."""
MOST_MODULES, MOST_FLOORS = 20, 11
"""The most loose modules of a folder, and the longest chain of imports between what it holds."""
SHARED_BY_CHECKS = {"base", "battery"}
"""Rooms of `audit/checks` that are no check."""
WHERE = ROOT / "docs" / "where-things-go.md"


@functools.cache
def sources(package: str) -> Mapping[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted((ROOT / package).rglob("*.py"))}


@functools.cache
def parsed(path: str, text: str) -> ast.Module:
    return ast.parse(text, path)


@functools.cache
def imported(path: str, text: str) -> tuple[tuple[int, str], ...]:
    """Line and dotted name of every import, also those inside functions and under TYPE_CHECKING."""
    return tuple(_imported(parsed(path, text)))


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


@pytest.fixture(scope="module", autouse=True)
def modules_are_parsed():
    for package in LAYERS:
        for path, text in sources(package).items():
            imported(path, text)


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


@pytest.mark.medium
@pytest.mark.parametrize("package", LAYERS)
def test_imports_run_to_the_left(package):
    assert upward(package, sources(package)) == []


@pytest.mark.medium
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
    (offender,) = upward(package, {**sources(package), path: f"def late():\n    {line}\n"})
    assert offender.startswith(f"{path}:2 imports {line.split()[1]}")


@pytest.mark.parametrize("package", LAYERS)
def test_every_room_is_a_layer(package):
    rooms = {Path(path).parts[1].removesuffix(".py") for path in sources(package)} - ENTRIES
    rooms |= RESOURCES if package == "engine" else set()
    assert rooms == {*LAYERS[package].split()} | (RESOURCES if package == "engine" else set())
    assert len(rooms) <= ROOMS[package]
    loose = {path.name for path in (ROOT / package).glob("*.py")}
    assert loose <= {"__init__.py", "__main__.py", "cli.py", "distribution.py", "errors.py"}


def folders(files: Mapping[str, str]) -> dict[str, list[str]]:
    """The modules that lie in each folder itself."""
    loose = defaultdict(list)
    for path in files:
        if not path.endswith("__init__.py"):
            loose[str(Path(path).parent)].append(path)
    return loose


def inside(folder: str, files: Mapping[str, str]) -> dict[str, set[str]]:
    """For each module and folder in a folder, those beside it whose modules it imports."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in files}
    graph: dict[str, set[str]] = defaultdict(set)
    for path, text in files.items():
        here = path.removeprefix(f"{folder}/").split("/")[0]
        for _, name in imported(path, text) if path.startswith(f"{folder}/") and here != "__init__.py" else ():
            there = modules.get(name) or modules.get(name.rpartition(".")[0]) or ""
            beside = there.removeprefix(f"{folder}/").split("/")[0]
            if there.startswith(f"{folder}/") and beside not in (here, "__init__.py"):
                graph[here].add(beside)
    return graph


def floors(graph: Mapping[str, set[str]]) -> int:
    """The longest chain of imports.

    Raises:
        CycleError: there is a circle.
    """
    height: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        height[name] = 1 + max((height[below] for below in graph.get(name, ())), default=0)
    return max(height.values(), default=0)


def disorder(files: Mapping[str, str]) -> list[str]:
    """Folders with too many modules or floors, and circles."""
    faults = [
        f"{folder}: {len(paths)} modules" for folder, paths in folders(files).items() if len(paths) > MOST_MODULES
    ]
    for folder in sorted({str(parent) for path in files for parent in Path(path).parents} - {"."}):
        try:
            height = floors(inside(folder, files))
        except CycleError as error:
            faults.append(f"{folder}: circle {' > '.join(error.args[1])}")
        else:
            faults += [f"{folder}: {height} floors"] if height > MOST_FLOORS else []
    return faults


def opened_checks(files: Mapping[str, str]) -> list[str]:
    """Imports of the inside of a check by anything but this check; the registry names checks by their modules."""
    faults = []
    for path, text in files.items():
        for line, name in imported(path, text):
            parts, own = name.split("."), Path(path).parts[2:3]
            room = parts[2] if parts[:2] == ["audit", "checks"] and len(parts) > 3 else None
            if room is not None and room not in SHARED_BY_CHECKS and own != (room,) and own != (f"{room}.py",):
                faults.append(f"{path}:{line} imports {name}")
    return faults


@pytest.mark.parametrize("package", LAYERS)
def test_every_folder_is_furnished(package):
    assert disorder(sources(package)) == []


def test_no_check_is_opened():
    assert opened_checks(sources("audit")) == []


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({f"audit/store/base/more_{number}.py": "" for number in range(20)}, "audit/store/base: "),
        ({"audit/store/tables/late.py": "from audit.store.reading.reader import open_run"}, "audit/store: circle "),
        (
            {f"audit/api/chain_{n}.py": f"from audit.api.chain_{n + 1} import name" for n in range(MOST_FLOORS + 1)}
            | {f"audit/api/chain_{MOST_FLOORS + 1}.py": ""},
            "audit/api: ",
        ),
    ],
    ids=["modules", "circle", "floors"],
)
def test_disorder_is_seen(files, fault):
    (seen,) = disorder({**sources("audit"), **files})
    assert seen.startswith(fault)


@pytest.mark.parametrize("path", ["audit/checks/seed.py", "audit/report/tables/coverage.py"])
def test_an_opened_check_is_seen(path):
    (seen,) = opened_checks({path: "def late():\n    from audit.checks.law.check import estimate"})
    assert seen == f"{path}:2 imports audit.checks.law.check.estimate"


@pytest.mark.medium
def test_a_class_name_stands_in_one_file():
    places = defaultdict(list)
    for package in LAYERS:
        for path, text in sources(package).items():
            for node in parsed(path, text).body:
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
        "a format of traffic",
        "a safety filter",
        "an engine to audit",
        "a section of the report",
        "a format of a run's verdicts",
    ]
    assert [path for _, path in rows if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("package", LAYERS)
def test_the_page_lists_the_layers(package):
    listed = re.search(rf"^\* `{package}/`: ([^.]+)\.$", WHERE.read_text("utf-8"), re.MULTILINE)
    assert listed is not None
    assert listed[1].replace(",", "").split() == LAYERS[package].split()
