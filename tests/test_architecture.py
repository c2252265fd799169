"""The shape of the house: import direction, sizes, annotations."""

from __future__ import annotations

import ast
import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "engine", "audit", "migrations")
ALLOWED = {
    "schemas": set(),
    "engine": {"schemas"},
    "audit": {"schemas", "engine", "suites"},
    "migrations": {"audit"},
}
FORBIDDEN = {
    "engine": {"sqlalchemy", "alembic", "click", "yaml", "ruamel", "rich", "jsonschema"},
    "schemas": {"torch", "sqlalchemy", "numpy", "transformers", "click"},
}
MIGRATIONS_IMPORT = ("audit.store.",)
FILE_CAP, FUNCTION_CAP, MEDIAN_CAP, NINETIETH_CAP = 400, 80, 12, 40
MAY_PRINT = {"engine/tools/plan_tree.py", "engine/tools/find_skips.py", "engine/train/__main__.py"}


@dataclass(frozen=True)
class Module:
    path: str
    package: str
    lines: int
    tree: ast.Module


def modules() -> list[Module]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            found.append(Module(str(path.relative_to(ROOT)), package, text.count("\n"), ast.parse(text)))
    return found


MODULES = modules()


def imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add(node.module)
    return names


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.path)
def test_imports_run_one_way(module):
    tops = {name.split(".")[0] for name in imported(module.tree)}
    ours = tops & set(PACKAGES) - {module.package}
    assert ours <= ALLOWED[module.package], f"{module.path} imports {ours - ALLOWED[module.package]}"
    forbidden = tops & FORBIDDEN.get(module.package, set())
    assert not forbidden, f"{module.path} imports {forbidden}"


def test_migrations_know_the_store_only():
    for module in MODULES:
        if module.package == "migrations":
            ours = {name for name in imported(module.tree) if name.startswith("audit")}
            assert all(name.startswith(MIGRATIONS_IMPORT) or name == "audit.store" for name in ours), module.path


def test_training_is_not_imported_at_run_time():
    for module in MODULES:
        if not module.path.startswith("engine/train/"):
            assert not any(name.startswith("engine.train") for name in imported(module.tree)), module.path


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.path)
def test_files_and_functions_stay_small(module):
    assert module.lines <= FILE_CAP
    for function in functions(module.tree):
        assert size(function) <= FUNCTION_CAP, f"{module.path}:{function.lineno} {function.name}"


def test_functions_are_short_on_the_whole():
    sizes = sorted(size(function) for module in MODULES for function in functions(module.tree))
    assert statistics.median(sizes) <= MEDIAN_CAP
    assert sizes[int(0.9 * len(sizes))] <= NINETIETH_CAP


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.path)
def test_every_function_says_what_it_returns_and_every_module_what_it_does(module):
    for function in functions(module.tree):
        assert function.returns is not None, f"{module.path}:{function.lineno} {function.name}"
    assert ast.get_docstring(module.tree), module.path


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.path)
def test_no_global_state_and_no_prints(module):
    for node in ast.walk(module.tree):
        assert not isinstance(node, ast.Global), f"{module.path}:{node.lineno} global"
        is_print = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        assert not is_print or module.path in MAY_PRINT, f"{module.path}:{node.lineno} print"


def test_the_parts_hold_together():
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} >= {*PACKAGES, "suites", "tests", "docs"}
    assert not any((ROOT / "suites").rglob("*.py")), "suites are data"
