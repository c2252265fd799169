"""Requests as lines of OpenAI's batch form, which suites take as traffic, and a proxy that writes any server's."""

import itertools
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

import httpx2
import orjson
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from audit.errors import UserError
from audit.text.printer import report

LOGGED: Final = ("/chat/completions", "/completions", "/responses")
HOPS: Final = frozenset(
    ("connection", "content-length", "host", "keep-alive", "proxy-authorization", "te", "transfer-encoding", "upgrade")
)
"""Headers of one connection, which a proxy does not pass on."""
MOST: Final = 2**26
"""Bytes of a body without its compression."""
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD")


@dataclass(frozen=True)
class RequestLog:
    """A new file for the bodies of requests. It holds prompts, so only its owner may read it."""

    file: BinaryIO
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def add(self, route: str, body: Any) -> None:
        """Write one request, at once."""
        line = {"custom_id": f"{next(self._numbers)}", "method": "POST", "url": f"/v1{route}", "body": body}
        self.file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


@contextmanager
def new_log(path: Path) -> Iterator[RequestLog]:
    """A log in a file that does not exist yet. Raises UserError: it exists, or cannot be made."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UserError(f"{path}: no new file can be made ({error.strerror}); name another one") from error
    with os.fdopen(number, "wb", buffering=0) as file:
        yield RequestLog(file)


def unpacked(content: bytes, coding: str) -> bytes:
    """A body as it was before its content coding. Raises ValueError: an unknown coding, damage, or more than `MOST`."""
    if coding.strip().lower() in ("", "identity"):
        return content
    if coding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"its content coding is {coding!r}")
    # 32 more than the window: the header says whether it is gzip or zlib
    reader = zlib.decompressobj(zlib.MAX_WBITS + 32)
    try:
        whole = reader.decompress(content, MOST)
    except zlib.error as error:
        raise ValueError(f"its body is no {coding}: {error}") from error
    if not reader.eof:
        raise ValueError(f"its body is cut, or has more than {MOST} bytes")
    return whole


def recording_proxy(url: str, log: RequestLog, timeout: float) -> Starlette:
    """An application that passes every request on to the server at `url` and logs those that it answered.

    `url` ends as clients write it, such as http://127.0.0.1:8000/v1; `timeout` is in seconds.
    """
    base, prefix = url.rstrip("/"), urlsplit(url).path.rstrip("/")
    client = httpx2.AsyncClient(timeout=timeout, trust_env=False)

    async def forward(request: Request) -> Response:
        route, content = request.url.path.removeprefix(prefix), await request.body()
        headers = [(name, value) for name, value in request.headers.items() if name not in HOPS]
        target = f"{base}{route}" + (f"?{request.url.query}" if request.url.query else "")
        try:
            sent = client.build_request(request.method, target, headers=headers, content=content)
            answer = await client.send(sent, stream=True)
        except httpx2.HTTPError as error:
            return PlainTextResponse(f"{base}: {type(error).__name__}: {error}", 502)
        if request.method == "POST" and route in LOGGED and answer.is_success:
            try:
                log.add(route, orjson.loads(unpacked(content, request.headers.get("content-encoding", ""))))
            except ValueError as error:
                report(f"an answered request to {route} is not in the file: {error}")
        kept = {name: value for name, value in answer.headers.items() if name not in HOPS}
        return StreamingResponse(answer.aiter_raw(), answer.status_code, kept, background=BackgroundTask(answer.aclose))

    return Starlette(routes=[Route("/{path:path}", forward, methods=list(METHODS))])
