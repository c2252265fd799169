"""The server as an ASGI application: routes, access, bodies, disconnections.

The routes under `/v1` need the token. `/health`, `/version` and `/metrics` need none, as in vLLM; they hold counts, and
no text. The Host header must name this machine, so a foreign name that resolves to loopback reaches nothing, and a body
must be JSON by its type, which no other site can make a browser send.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from audit.serve import meters
from audit.serve.completion_task import CompletionTask
from audit.serve.grammar_trials import GrammarTrials, grammars_of
from audit.serve.meters import ServeMeters
from audit.serve.refusals import INVALID, SERVER, ApiRefusal, invalid, too_slow
from audit.serve.request_log import RequestLog
from audit.serve.request_parser import AskedCompletion, read_chat, read_completion
from audit.serve.running_batch import RunningBatch
from audit.serve.served_model import ServedModel

OWNER: Final = "specaudit"
HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
UNREAD: Final = frozenset((401, 408, 413, 415, 421))
"""Refusals before the whole body is there: the rest would be parsed only to be thrown away."""
Endpoint = Callable[[Request], Awaitable[Response]]


class OrjsonResponse(JSONResponse):
    """A document."""

    def render(self, content: Any) -> bytes:
        """Its bytes."""
        return orjson.dumps(content)


@dataclass(frozen=True)
class ApiServer:
    """Everything that routes need. Requests are read and encoded in one thread of their own, one after another.

    Grammars are tried in two others, so that a costly one delays nobody without a grammar.
    """

    model: ServedModel
    batch: RunningBatch
    meters: ServeMeters
    token: str | None
    new_id: Callable[[bool], str]
    version: str
    report: Callable[[str], None]
    reading: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "read-requests"))
    trying: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "try-grammars"))
    trials: GrammarTrials = field(default_factory=GrammarTrials)
    log: RequestLog | None = None

    async def models(self, _request: Request) -> Response:
        """`GET /v1/models`."""
        return OrjsonResponse({"object": "list", "data": [self._card()]}, headers=HEADERS)

    async def model_card(self, request: Request) -> Response:
        """`GET /v1/models/NAME`."""
        if request.path_params["name"] != self.model.name:
            raise ApiRefusal(404, "this server has no such model", param="model", code="model_not_found")
        return OrjsonResponse(self._card(), headers=HEADERS)

    def _card(self) -> dict[str, Any]:
        model = self.model
        card = {"id": model.name, "object": "model", "created": model.created, "owned_by": OWNER}
        return {**card, "root": model.name, "parent": None, "max_model_len": model.limits.context}

    async def health(self, _request: Request) -> Response:
        """`GET /health`: 200 while requests are taken in."""
        if self.batch.closed is not None:
            raise self.batch.closed
        return Response(headers=HEADERS)

    async def show_version(self, _request: Request) -> Response:
        """`GET /version`."""
        return OrjsonResponse({"version": self.version}, headers=HEADERS)

    async def metrics(self, _request: Request) -> Response:
        """`GET /metrics`."""
        return Response(self.meters.page(), headers=HEADERS | {"Content-Type": meters.CONTENT_TYPE})

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        body = await self._body(request)
        return await self._answer(request, body, read_chat(body, self.model.name, self.model.limits))

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        body = await self._body(request)
        return await self._answer(request, body, read_completion(body, self.model.name, self.model.limits))

    async def _answer(self, request: Request, body: Any, asked: AskedCompletion) -> Response:
        completion = self.new_id(asked.chat)
        loop = asyncio.get_running_loop()
        if grammars := list(grammars_of(asked)):
            await loop.run_in_executor(self.trying, self.trials.require, grammars)
        requests = await loop.run_in_executor(self.reading, self.model.requests, completion, asked)
        if self.log is not None:
            self.log.add(request.url.path.removeprefix("/v1"), body)
        task = CompletionTask(self.model, self.batch, asked, completion, requests)
        task.start()
        if asked.stream:
            return CompletionStream(task)
        return await _unless_gone(request, task)

    async def _body(self, request: Request) -> Any:
        """The parsed body of a request with the token; raises ApiRefusal."""
        self.require_token(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiRefusal(415, "the body must have the content type application/json", param="content-type")
        limits = self.model.limits
        try:
            async with asyncio.timeout(limits.upload):
                content = await _bounded(request, limits.body)
        except TimeoutError:
            raise too_slow(f"the body did not arrive within {limits.upload:g} s") from None
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise invalid(f"the body is no JSON: {error}") from None

    def shutdown(self) -> None:
        """End the threads."""
        self.reading.shutdown()
        self.trying.shutdown()

    def require_token(self, request: Request) -> None:
        """Refuse a request without the token."""
        if self.token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            raise ApiRefusal(401, "the bearer token is missing or wrong", code="invalid_api_key")


async def _bounded(request: Request, most: int) -> bytes:
    """The bytes of a body; raises ApiRefusal: it has more than `most`."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > most:
            raise ApiRefusal(413, f"the body has more than {most} bytes", code="body_too_large")
    return bytes(content)


class CompletionStream(StreamingResponse):
    """Streams an answer and frees its batch row however the connection ends."""

    def __init__(self, task: CompletionTask) -> None:
        super().__init__(task.parts(), media_type="text/event-stream", headers=HEADERS)
        self._task = task

    async def __call__(self, *arguments: Any) -> None:
        """Send the answer."""
        try:
            await super().__call__(*arguments)
        finally:
            self._task.leave()


async def _unless_gone(request: Request, task: CompletionTask) -> Response:
    """The whole answer, unless the client disconnects first."""
    answer = asyncio.ensure_future(task.whole())
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return OrjsonResponse(answer.result(), headers=HEADERS)
        # nobody reads this answer
        return Response(status_code=499)
    finally:
        answer.cancel()
        gone.cancel()
        task.leave()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def application(server: ApiServer) -> Starlette:
    """All routes of a server."""

    def guarded(endpoint: Endpoint, *, token: bool) -> Endpoint:
        async def answer(request: Request) -> Response:
            try:
                host = request.headers.get("host", "")
                if host.rpartition(":")[0] not in HOSTS and host not in HOSTS:
                    raise ApiRefusal(421, "the Host header does not name this machine")
                if token:
                    server.require_token(request)
                return await endpoint(request)
            except ApiRefusal as refusal:
                more = {"Retry-After": "1"} if refusal.status == 429 else {}
                more |= {"Connection": "close"} if refusal.status in UNREAD else {}
                return OrjsonResponse(refusal.document(), refusal.status, headers=HEADERS | more)
            except Exception as error:
                server.report(f"{request.url.path}: {type(error).__name__}: {error}")
                broken = ApiRefusal(500, "the server failed; its terminal says why", SERVER, code="server_failed")
                return OrjsonResponse(broken.document(), 500, headers=HEADERS)

        return answer

    routes = [
        Route("/v1/models", guarded(server.models, token=True)),
        Route("/v1/models/{name:path}", guarded(server.model_card, token=True)),
        Route("/v1/chat/completions", guarded(server.chat, token=True), methods=["POST"]),
        Route("/v1/completions", guarded(server.completions, token=True), methods=["POST"]),
        Route("/health", guarded(server.health, token=False)),
        Route("/version", guarded(server.show_version, token=False)),
        Route("/metrics", guarded(server.metrics, token=False)),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refused})


async def _refused(_request: Request, error: Exception) -> Response:
    """The router's own refusals: no such route, no such method."""
    assert isinstance(error, HTTPException)
    refusal = ApiRefusal(error.status_code, error.detail, INVALID)
    return OrjsonResponse(refusal.document(), refusal.status, headers=HEADERS)
