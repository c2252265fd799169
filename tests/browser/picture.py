"""The picture of the viewer in the docs: a request of the newest run of a store, with one token in focus.

``python -m tests.browser.picture docs/pictures/viewer.png --store FILE``; `make docs-picture` runs a quickstart first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import click
from playwright.sync_api import sync_playwright

from audit.store import Store
from tests.browser.chrome import CHROMIUM, served, watching

SIZE: Final = {"width": 1200, "height": 860}
REQUEST: Final = "rejection/chat/chat-000#0"


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--store", required=True)
@click.option("--request", default=REQUEST, show_default=True)
def write(out: Path, store: str, request: str) -> None:
    """Write the picture to OUT."""
    with Store.open(store, create=False, read_only=True) as opened:
        run = opened.resolve("latest")
    out.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, served(store) as viewer:
        chrome = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with watching(chrome, viewer) as tab:
            tab.page.set_viewport_size(SIZE)
            tab.go(f"/runs/{run}/request?{urlencode({'name': request})}")
            tab.page.locator(".line .tok.recovered").first.focus()
            tab.page.screenshot(path=out)
        chrome.close()


if __name__ == "__main__":
    write()
