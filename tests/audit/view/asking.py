"""Asks the viewer's application without a socket."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import anyio
import httpx2

from audit.store.browse.browser import Browser
from audit.view.access import Access
from audit.view.app import Viewer, application
from audit.view.templates_of import Begin, drawn_here, templates

ACCESS = Access(8765, "the-token", "the-session")
COOKIE = f"{ACCESS.cookie}={ACCESS.session}"


@dataclass
class Asking:
    """A viewer of one store, and the messages that it reported."""

    store: str
    reported: list[str] = field(default_factory=list)
    begin: Begin = drawn_here

    def __post_init__(self) -> None:
        viewer = Viewer(
            Browser.open(self.store, create=False, read_only=True), self.reported.append, templates(self.begin)
        )
        self.app = application(viewer, ACCESS)

    def get(self, path, method="GET", **headers):
        """The answer to one request with the cookie, unless `headers` say otherwise."""
        given = {"host": "127.0.0.1:8765", "cookie": COOKIE} | headers

        async def asked():
            transport = httpx2.ASGITransport(self.app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8765") as client:
                return await client.request(method, path, headers={k: v for k, v in given.items() if v is not None})

        return anyio.run(asked)

    def page(self, path):
        """The text of a page, which must exist."""
        answer = self.get(path)
        assert answer.status_code == 200, (path, answer.status_code, sentence(answer), self.reported)
        return answer.text


def sentence(answer):
    """What a refusal says."""
    return re.search(r"<main[^>]*>\s*<p>(.*?)</p>", answer.text, re.DOTALL)[1]
