"""The built site without a browser: what its pages link to, and a server of its files on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit


@dataclass
class Links(HTMLParser):
    """Targets and ids of one page."""

    targets: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)
    """Pictures, scripts and styles, which a browser fetches by itself."""
    ids: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one element links to."""
        given = {name: value for name, value in attrs if value is not None}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.targets.add(given["href"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.add(given["href"])
        if tag in ("img", "script", "iframe", "source") and "src" in given:
            self.loaded.add(given["src"])


def links_of(page: Path) -> Links:
    """The targets and ids of a page."""
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


def is_outside(target: str) -> bool:
    """True if a link names another host."""
    return bool(urlsplit(target).scheme or urlsplit(target).netloc)


def page_at(page: Path, target: str) -> tuple[Path, str]:
    """The file and the anchor to which a link inside the site leads."""
    name, anchor = urldefrag(target)
    goal = (page.parent / unquote(urlsplit(name).path)).resolve() if name else page
    return (goal / "index.html" if goal.is_dir() else goal), unquote(anchor)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@contextmanager
def serving_files(folder: Path) -> Iterator[str]:
    """A server of a folder's files; its origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
