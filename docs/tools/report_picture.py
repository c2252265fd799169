"""The picture of the report in README and docs: the first page of a stored run, as headless Chromium shows it.

``python -m docs.tools.report_picture docs/report.png --store FILE`` writes it for the newest run of a store;
`make docs-picture` runs the quickstart first.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import click

from audit.report.html.registry import source_of
from audit.report.html.render import BROWSERS, render_page
from audit.store import Store

WIDTH: Final = 1200
HEIGHT: Final = 1180
"""The header, the verdict board and its first results."""


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--store", required=True)
@click.option("--height", default=HEIGHT, show_default=True)
def write(out: Path, store: str, height: int) -> None:
    """Write the picture of the newest run of a store to OUT."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        raise click.ClickException("needs Chromium or Chrome in PATH")
    with Store.open(store, create=False, read_only=True) as opened:
        page = render_page(source_of(opened, opened.resolve("latest")))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "report.html"
        source.write_text(page, "utf-8")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        options += [f"--window-size={WIDTH},{height}", f"--screenshot={out.resolve()}", source.as_uri()]
        subprocess.run([browser, *options], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    write()
