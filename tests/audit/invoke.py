"""The command line, run inside the test's process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from audit.cli import main


def invoke(*arguments: str) -> Result:
    """Run `audit` with arguments; stdout and stderr are kept apart."""
    return CliRunner().invoke(main, list(arguments))
