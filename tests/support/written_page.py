"""The command of every module that generates a page: `python -m tests.support.NAME OUT`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click


def write_page(page: Callable[[], str]) -> None:
    """Run the command line of a module that makes this page."""

    @click.command(Path(sys.argv[0]).stem)
    @click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
    def write(out: Path) -> None:
        """Write the page to OUT."""
        out.write_text(page(), encoding="utf-8")

    write()
