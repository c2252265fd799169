"""What each command imports: reading a store or a suite needs no torch, and its help needs next to nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from audit.cli import COMMANDS, FIRST, SECTIONS, main
from tests.audit.store.build import made_store

WATCHED = (
    *("alembic", "difflib", "engine.core.types", "jsonschema", "numpy", "rich", "ruamel.yaml", "scipy"),
    *("ray", "scipy.special", "scipy.stats", "sqlalchemy", "submitit", "torch", "transformers"),
)
STORE, TEXTS = {"sqlalchemy"}, {"sqlalchemy", "ruamel.yaml"}
SUITE = {"engine.core.types", "jsonschema", "numpy", "ruamel.yaml", "scipy"}
PROGRAM = f"""
import json, sys
from audit.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(json.dumps(sorted(set(sys.modules) & set({WATCHED}))), file=sys.stderr)
"""
STANDARD = Path(__file__).parents[2] / "suites" / "policies" / "standard.yaml"
VERIFY = ("verify", "report.json", "--statement", "missing.json")
GATE = ("gate", "latest", "--policy", "standard")
GATE_OWN = ("gate", "latest", "--policy", "policy.yaml")


def imported(*arguments: str) -> set[str]:
    """Which of the watched modules a process has imported that ran one command."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("--help",), set()),
        (("--version",), set()),
        (("schema",), set()),
        (("query", "--list"), STORE),
        (("validate", "quickstart"), SUITE),
        (("validate", "transformers/greedy"), SUITE),
        (("run", "absent.yaml", "--workers", "2"), STORE | SUITE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_commands_without_a_store_import_what_they_need(arguments, allowed):
    assert imported(*arguments) <= allowed


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("list",), STORE),
        (("show",), TEXTS),
        (("query", "acceptance"), STORE),
        (VERIFY, TEXTS | {"jsonschema"}),
        # the checks compute the verdicts again
        (GATE, TEXTS | SUITE | {"scipy.special"}),
        (GATE_OWN, TEXTS | SUITE | {"scipy.special"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_commands_on_a_store_import_what_they_need(arguments, allowed, tmp_path):
    (tmp_path / "report.json").write_text("{}")
    (tmp_path / "policy.yaml").write_bytes(STANDARD.read_bytes() + b"# ours\n")
    places = [str(tmp_path / each) if each.endswith((".json", ".yaml")) else each for each in arguments]
    assert imported(*places, "--store", made_store(tmp_path)) <= allowed


def test_every_command_is_where_its_section_says():
    context = click.Context(main)
    for name in COMMANDS:
        assert main.get_command(context, name).name == name


def test_the_help_of_the_whole_cuts_nothing_at_80_columns():
    shown = CliRunner().invoke(main, ["--help"], terminal_width=80).stdout
    for commands in SECTIONS.values():
        for name, text in commands.items():
            assert re.search(rf"^  {name} +{re.escape(text)}$", shown, re.MULTILINE)
    assert [line[:-1].lower() for line in shown.splitlines() if re.fullmatch(r"\w+:", line)][1:] == list(SECTIONS)


def test_the_command_alone_shows_the_first_steps():
    result = CliRunner().invoke(main, [], terminal_width=80)
    assert result.exit_code == 0
    assert all(re.search(rf"^  {name} ", result.stdout, re.MULTILINE) for name in FIRST)
    assert "audit run quickstart" in result.stdout
    assert len(result.stdout.splitlines()) < 25


@pytest.mark.parametrize(("typed", "meant"), [("shwo", "show"), ("validat", "validate"), ("Run", "run")])
def test_an_unknown_command_is_answered_with_the_nearest(typed, meant):
    result = CliRunner().invoke(main, [typed])
    assert result.exit_code == 2
    assert f"did you mean '{meant}'?" in result.stderr


@pytest.mark.medium
def test_a_command_is_imported_without_garbage_collection_which_then_goes_on():
    code = (
        "import gc, click; from audit.cli import main; seen = []; gc.callbacks.append(lambda *_: seen.append(1));"
        "main.get_command(click.Context(main), 'list'); print(len(seen), gc.isenabled(), gc.get_freeze_count() > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True", "True"]


@pytest.mark.medium
def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "audit", "list", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: audit list")
