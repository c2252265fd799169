"""The command line, run inside the test's process."""

from __future__ import annotations

from audit.cli import main
from click.testing import CliRunner, Result


def invoke(*arguments: str) -> Result:
    """Run `audit` with arguments; stdout and stderr are kept apart."""
    return CliRunner().invoke(main, list(arguments))
