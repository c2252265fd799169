"""The shape of the house: import direction, sizes, annotations."""

from __future__ import annotations

import ast
import functools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "engine", "audit", "migrations")
ALLOWED = {"schemas": set(), "engine": {"schemas"}, "audit": {"schemas", "engine", "suites"}, "migrations": {"audit"}}
FORBIDDEN = {
    "engine": {"sqlalchemy", "alembic", "click", "yaml", "ruamel", "rich", "jsonschema"},
    "schemas": {"torch", "sqlalchemy", "numpy", "transformers", "click"},
}
MIGRATIONS_IMPORT = ("audit.store.",)
FILE_CAP, FUNCTION_CAP, MEDIAN_CAP, NINETIETH_CAP = 400, 80, 12, 40
MAY_PRINT = {"engine/tools/plan_tree.py", "engine/tools/find_skips.py", "engine/train/__main__.py"}
PRINTER = "audit/text/printer.py:"
WRITES = {
    *("click.echo", "click.secho", "click.style", "click.confirm", "click.prompt", "warnings.warn", "rich.print"),
    *(
        f"{stream}.{name}"
        for stream in ("sys.stdout", "sys.stderr")
        for name in ("write", "writelines", "buffer.write")
    ),
}
LOGS = (
    *("audit/cli.py", "audit/store/base/run_lock.py", "audit/store/base/lock_wait.py"),
    "engine/models/files/gguf_file.py",
)
"""The logs of the store and of the engine, which the command line prints with `note`."""
MAY_IMPORT = {"audit/terminal/live_table.py": "rich", "audit/text/printer.py": "rich", **dict.fromkeys(LOGS, "logging")}
"""The table of a run in progress makes its texts visible itself."""

# one process parses every module
pytestmark = pytest.mark.xdist_group("architecture")


@dataclass(frozen=True)
class Module:
    path: str
    package: str
    lines: int
    tree: ast.Module


@functools.cache
def modules() -> tuple[Module, ...]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            found.append(Module(str(path.relative_to(ROOT)), package, text.count("\n"), ast.parse(text)))
    return tuple(found)


def imports(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Line, level and name of each module that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, 0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.level, node.module or ""


def imported(tree: ast.Module) -> set[str]:
    return {name for _, _, name in imports(tree)}


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return node.end_lineno - node.lineno + 1


@pytest.mark.medium
def test_imports_run_one_way():
    offenders = []
    for module in modules():
        other = set(PACKAGES) - {module.package} - ALLOWED[module.package]
        for line, level, name in imports(module.tree):
            if level or name.split(".")[0] in other | FORBIDDEN.get(module.package, set()):
                offenders.append(f"{module.path}:{line} imports {'.' * level}{name}")
    assert offenders == []


def test_migrations_know_the_store_only():
    for module in modules():
        if module.package == "migrations":
            ours = {name for name in imported(module.tree) if name.startswith("audit")}
            assert all(name.startswith(MIGRATIONS_IMPORT) or name == "audit.store" for name in ours), module.path


@pytest.mark.medium
def test_training_is_not_imported_at_run_time():
    for module in modules():
        if not module.path.startswith("engine/train/"):
            assert not any(name.startswith("engine.train") for name in imported(module.tree)), module.path


@pytest.mark.medium
def test_files_and_functions_stay_small():
    files = [f"{module.path}: {module.lines} lines" for module in modules() if module.lines > FILE_CAP]
    long = [
        f"{module.path}:{function.lineno} {function.name}: {size(function)} lines"
        for module in modules()
        for function in functions(module.tree)
        if size(function) > FUNCTION_CAP
    ]
    assert files + long == []


@pytest.mark.medium
def test_functions_are_short_on_the_whole():
    sizes = sorted(size(function) for module in modules() for function in functions(module.tree))
    assert statistics.median(sizes) <= MEDIAN_CAP
    assert sizes[int(0.9 * len(sizes))] <= NINETIETH_CAP


@pytest.mark.medium
def test_every_function_says_what_it_returns_and_every_module_what_it_does():
    untyped = [
        f"{module.path}:{function.lineno} {function.name}"
        for module in modules()
        for function in functions(module.tree)
        if function.returns is None
    ]
    silent = [module.path for module in modules() if not ast.get_docstring(module.tree)]
    assert (untyped, silent) == ([], [])


def is_print(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


@pytest.mark.medium
def test_no_global_state_and_no_prints():
    offenders = []
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Global):
                offenders.append(f"{module.path}:{node.lineno} global")
            elif is_print(node) and module.path not in MAY_PRINT:
                offenders.append(f"{module.path}:{node.lineno} print")
    assert offenders == []


def beside_the_printer(node: ast.AST) -> bool:
    """True if a call or an import writes to a terminal or a log itself."""
    if isinstance(node, ast.Import):
        return any(alias.name == "logging" for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module == "logging" or (node.module or "").startswith("rich")
    return is_print(node) or (isinstance(node, ast.Call) and ast.unparse(node.func) in WRITES)


@pytest.mark.medium
def test_one_printer_writes_to_the_terminal():
    """Use `echo`, `note` or `echo_document` of audit/text/printer.py: they show what would move a cursor or hide."""
    offenders = [
        f"{module.path}:{node.lineno} {ast.unparse(node)}"
        for module in modules()
        if module.path not in MAY_PRINT
        for node in ast.walk(module.tree)
        if beside_the_printer(node) and MAY_IMPORT.get(module.path, PRINTER) not in ast.unparse(node)
    ]
    assert [offender for offender in offenders if not offender.startswith(PRINTER)] == []


@pytest.mark.parametrize(
    "line",
    ["click.echo('x')", "print('x')", "sys.stderr.write('x')", "import logging", "from rich.console import Console"],
)
def test_a_line_beside_the_printer_is_seen(line):
    assert any(map(beside_the_printer, ast.walk(ast.parse(line))))


@pytest.mark.medium
def test_no_test_file_is_a_library():
    """What tests share is in `tests/support` or in a module without tests."""
    offenders = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            source = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            ours = isinstance(node, ast.ImportFrom) and (node.level or source.startswith("tests"))
            parts = [*source.split("."), *names] if ours else [part for name in names for part in name.split(".")]
            if any(part.startswith("test_") for part in parts) and (ours or "tests" in parts):
                offenders.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert offenders == []


def test_the_parts_hold_together():
    assert len(modules()) > 100
    assert {path.name for path in ROOT.iterdir() if path.is_dir()} >= {*PACKAGES, "suites", "tests", "docs"}
    assert not any((ROOT / "suites").rglob("*.py")), "suites are data"
