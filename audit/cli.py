"""The `audit` command: registers commands and maps errors to exit codes.

Exit codes everywhere: 0 pass or allow, 1 fail or block, 2 usage or invalid
input, 3 cannot decide. stdout is data, stderr is messages.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

import click

from audit.errors import CannotDecide, UserError

COMMANDS: Final[Mapping[str, str]] = {
    "attach": "audit.commands.attach:command",
    "db": "audit.commands.db:command",
    "doctor": "audit.commands.doctor:command",
    "gate": "audit.commands.gate:command",
    "list": "audit.commands.list:command",
    "minimize": "audit.commands.minimize:command",
    "plan": "audit.commands.plan:command",
    "query": "audit.commands.query:command",
    "resume": "audit.commands.resume:command",
    "run": "audit.commands.run:command",
    "schema": "audit.commands.schema:command",
    "selftest": "audit.commands.selftest:command",
    "show": "audit.commands.show:command",
    "sweep": "audit.commands.sweep:command",
    "validate": "audit.commands.validate:command",
    "verify": "audit.commands.verify:command",
}


class LazyGroup(click.Group):
    """Imports a command when it is used, so that `audit --help` does not import torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All names, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command behind a name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; a user's mistake is one line and 2, undecidable evidence one line and 3."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            click.echo(f"audit: {error}", err=True)
            ctx.exit(2)
        except CannotDecide as error:
            click.echo(f"audit: {error}", err=True)
            ctx.exit(3)


@click.command("audit", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="specaudit")
def main() -> None:
    """Audit speculative decoding: run suites, keep the evidence, gate deployments."""
