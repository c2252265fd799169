"""What no module of ours does, because a file or a server could make it run code; and the pinned packages."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.tools.lock_file import LOCK, Pin, bom, lock_text, pins_of_lock, pins_of_report

ROOT = Path(__file__).parents[1]
PACKAGES = ("audit", "engine", "migrations", "schemas", "suites")
POOLS = ("multiprocessing", "ProcessPoolExecutor")
"""What pickles by itself, between this process and its workers."""
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle", "pty"} | {*POOLS}
BETWEEN_OWN_PROCESSES = {
    "audit/executors/local.py",
    "audit/runs/reading_helpers.py",
    "audit/selftest/work.py",
    "audit/view/drawer.py",
    "engine/core/child.py",
}
"""Modules that start workers which exchange pickles with this process, through pipes, in its own environment."""
CALLS = {"eval", "exec", "__import__"}
METHODS = {
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "torch.load",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "pandas.read_pickle",
}
FLAGS = {"shell": True, "allow_pickle": True, "trust_remote_code": True, "weights_only": False}


def offences(text: str) -> Iterator[str]:
    """Line and name of what a module may not do."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (f"{node.lineno} imports {name.name}" for name in node.names if top(name.name) in MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
            yield from (f"{node.lineno} imports {name}" for name in names if top(name) in MODULES)
        elif isinstance(node, ast.Call):
            yield from called(node)


def test_the_newest_heading_of_the_changelog_is_the_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    (heading, *_) = re.findall(
        r"^## (\S+) - (Unreleased|\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M
    )
    assert heading[0] == version


def called(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    if name in CALLS or name in METHODS:
        yield f"{node.lineno} calls {name}"
    for keyword in node.keywords:
        value = keyword.value
        if keyword.arg in FLAGS and not (isinstance(value, ast.Constant) and value.value is not FLAGS[keyword.arg]):
            yield f"{node.lineno} passes {keyword.arg}={ast.unparse(value)}"
        if keyword.arg == "typ" and isinstance(value, ast.Constant) and value.value == "unsafe":
            yield f"{node.lineno} reads YAML with typ='unsafe'"


def top(name: str) -> str:
    return name.split(".")[0]


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


@pytest.mark.medium
def test_no_module_runs_what_it_reads():
    found = [
        f"{path.relative_to(ROOT)}:{offence}" for path in sources() for offence in offences(path.read_text("utf-8"))
    ]
    assert [each for each in found if not between_own_processes(each)] == []
    # no entry outlives its import
    assert {each.split(":")[0] for each in found if between_own_processes(each)} == BETWEEN_OWN_PROCESSES


def between_own_processes(offence: str) -> bool:
    where, _, what = offence.partition(":")
    return where in BETWEEN_OWN_PROCESSES and what.rpartition(" imports ")[2].split(".")[0] in POOLS


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from shelve import open",
        "import multiprocessing.connection",
        "from multiprocessing import get_context",
        "from concurrent.futures import ProcessPoolExecutor",
        "eval('1')",
        "exec(text)",
        "yaml.load(text)",
        "torch.load(path)",
        "subprocess.run(command, shell=True)",
        "subprocess.run(command, shell=flag)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
        "YAML(typ='unsafe')",
    ],
)
def test_each_offence_is_noticed(text):
    assert len(list(offences(text))) == 1


def test_what_is_harmless_is_not_noticed():
    assert list(offences("network.eval()\nsubprocess.run(c, shell=False)\nre.compile('a')\nYAML(typ='safe')")) == []


def test_the_lock_pins_every_dependency_with_a_digest():
    """`pip install --require-hashes` takes it; dependencies of dependencies are in it too."""
    text = LOCK.read_text("utf-8")
    pins = pins_of_lock(text)
    assert len(pins) == text.count("==") > 40
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["engine"]]
    wanted = {re.match(r"[A-Za-z0-9._-]+", item)[0].lower() for item in needed}
    assert wanted <= {pin.name for pin in pins}
    constrained = dict(re.findall(r"^([a-z]+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.M))
    for pin in pins:
        assert pin.version.split("+")[0] == constrained.get(pin.name, pin.version)


def test_the_lock_is_written_from_the_report_of_pip():
    item = {
        "metadata": {"name": "Typing_Extensions", "version": "4.1"},
        "download_info": {"archive_info": {"hashes": {"sha256": "a" * 64}}},
    }
    own = {"metadata": {"name": "specaudit", "version": "0"}, "download_info": {}}
    text = lock_text(pins_of_report({"install": [item, own]}))
    assert pins_of_lock(text) == (Pin("typing-extensions", "4.1", "a" * 64),)


def test_the_bill_of_materials_of_the_release_follows_its_schema():
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    document = bom(pins_of_lock(LOCK.read_text("utf-8")))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
    assert {part["name"] for part in document["components"]} >= {"torch", "numpy", "click"}
    assert document == bom(pins_of_lock(LOCK.read_text("utf-8")))
