"""The command of every module that generates a page: `python -m docs.tools.NAME OUT`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click


def page_writer(page: Callable[[], str]) -> click.Command:
    """The command that writes what a function makes."""

    @click.command()
    @click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
    def write(out: Path) -> None:
        """Write the page to OUT."""
        out.write_text(page(), encoding="utf-8")

    return write
