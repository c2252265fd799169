"""Who may read the pages: programs that know the address which `audit view` printed, from this machine.

The address holds a random token. A browser exchanges it, once, for a cookie that scripts cannot read and that no other
site can make the browser send. The Host header must name this server, so a foreign name that resolves to loopback reads
nothing. Cannot see: another user's server on another port of this machine, to which a browser sends the cookie too.
"""

import hmac
import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ENTRANCE: Final = "/open"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# a redirection would still count as coming from where the link was, and the browser would keep the cookie back
ENTERED: Final = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>audit view</title>'
    '<meta http-equiv="refresh" content="0;url=/"></head>'
    '<body><p><a href="/">Open the list of runs</a></p></body></html>'
)
SPENT: Final = "This address was opened before, and it opens the pages once; start audit view again for another.\n"
REFUSED: Final = "This page needs the address that audit view printed on the terminal; open that address again.\n"


@dataclass(frozen=True, slots=True)
class Access:
    """The secrets of one server: `token` in its address, `session` in the cookie."""

    port: int
    token: str
    session: str

    @property
    def address(self) -> str:
        """Where a browser begins."""
        return f"http://127.0.0.1:{self.port}{ENTRANCE}?token={self.token}"

    @property
    def cookie(self) -> str:
        """Name of the cookie; servers on several ports share a cookie jar."""
        return f"specaudit_view_{self.port}"

    @property
    def hosts(self) -> frozenset[str]:
        """Values of the Host header that name this server."""
        return frozenset((f"127.0.0.1:{self.port}", f"localhost:{self.port}"))


def new_access(port: int) -> Access:
    """Fresh secrets."""
    return Access(port, secrets.token_urlsafe(32), secrets.token_urlsafe(32))


class Guarded:
    """An application behind an `Access`; every answer has the headers that keep it in its place."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._spent = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._answer(scope) or self._app
        await answer(scope, receive, protected)

    def _answer(self, scope: Scope) -> Response | None:
        """The answer that the application does not give; None lets it answer."""
        headers = Headers(scope=scope)
        if headers.getlist("host") not in [[host] for host in self._access.hosts]:
            return PlainTextResponse("The Host header does not name this server.\n", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("The pages are read-only.\n", 405, {"Allow": "GET, HEAD"})
        if scope["path"] == ENTRANCE:
            return self._entered(scope, headers)
        return None if self._known(headers) else PlainTextResponse(REFUSED, 403)

    def _known(self, headers: Headers) -> bool:
        return hmac.compare_digest(self._cookie(headers), self._access.session.encode())

    def _entered(self, scope: Scope, headers: Headers) -> Response:
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
        if not hmac.compare_digest(tokens[0].encode(), self._access.token.encode()):
            return PlainTextResponse(REFUSED, 403)
        if self._spent and not self._known(headers):
            return PlainTextResponse(SPENT, 403)
        self._spent = True
        answer = HTMLResponse(ENTERED)
        answer.set_cookie(self._access.cookie, self._access.session, httponly=True, samesite="strict")
        return answer

    def _cookie(self, headers: Headers) -> bytes:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._access.cookie)
        except CookieError:
            return b""
        return b"" if morsel is None else morsel.value.encode()
