"""Commands that messages tell a user to type are complete: each parses as it is written."""

import ast
import copy
import re
import shlex
from pathlib import Path

import click
import pytest

import audit
from audit.cli import main
from audit.commands.decide.waive import _approval
from audit.store.ledger.proof import SIGN

ROOT = Path(audit.__file__).parent
TOLD = re.compile(r": (audit [a-z].*?)(?=$|;|,| \(| and | or |\n|`)")
"""A colon and a command, up to what ends it in a sentence."""


def written(node):
    """The text of a literal; a value that is put into it is one word."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def hints():
    """Every command in a message of the product, by its place."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if id(node) not in inner:
                for match in TOLD.finditer(written(node)):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", match[1].rstrip(".")


HINTS = sorted(set(hints()))


def parsed(words):
    """Raises click's own error where a command or an option is missing or unknown."""
    command, context = main, click.Context(main)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        command, context = found, click.Context(found, parent=context, info_name=name)
    # values in a message are made up here, so no file has their names
    command = copy.deepcopy(command)
    for parameter in command.params:
        if isinstance(parameter.type, click.Path | click.Choice | click.IntRange | click.FloatRange):
            parameter.type = click.STRING
    command.parse_args(click.Context(command), list(words))


@pytest.mark.parametrize(("place", "hint"), HINTS)
def test_a_command_in_a_message_is_complete(place, hint):
    try:
        parsed(shlex.split(hint)[1:])
    except click.exceptions.ClickException as error:
        pytest.fail(f"{place}: {hint}: {error.format_message()}")


@pytest.mark.parametrize("told", [SIGN, _approval("RUN", "WAIVER")])
def test_a_command_that_messages_share_is_complete(told):
    parsed(shlex.split(told)[1:])


def test_commands_are_found_in_messages():
    assert len(HINTS) > 10
    with pytest.raises(click.exceptions.ClickException):
        parsed(["keys", "init", "KEY"])
