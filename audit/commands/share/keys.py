"""`audit keys`: keys that sign checkpoints of the store's log."""

from pathlib import Path

import click

from audit.store.base import keys
from audit.terminal.options import PATH
from audit.text.printer import echo


@click.group("keys")
def command() -> None:
    """Make and show the keys that sign checkpoints of a store's log."""


@command.command("init")
@click.argument("file", type=PATH)
@click.option("--name", required=True, help="Name of the key and the log, for example example.org/audit.")
def init(file: Path, name: str) -> None:
    """Make a private key in FILE and its public key in FILE.pub; neither may exist."""
    echo(keys.init(file, name).text)


@command.command("show")
@click.argument("file", type=PATH)
def show(file: Path) -> None:
    """Print the public key of the private key in FILE."""
    echo(keys.read_private(file).public.text)
