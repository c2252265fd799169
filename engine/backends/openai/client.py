"""The connection to one endpoint: requests out, JSON documents back, every failure as an `AttemptError`.

The only place that knows the API key and the HTTP library. The key goes to the origin of `url` only, and is removed
from every server message. Proxies, passwords and certificates in the environment are ignored.

A server is a stranger, so the bytes, characters and tokens of one answer are bounded. The limits follow from the
request, with room for servers that say much besides: a program that asks for a hundred tokens need not hold a gigabyte
in memory because a server sends one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from engine.backends.openai.documents import brief, parse
from engine.backends.openai.errors import AttemptError, FailureKind, malformed, of_status, said
from engine.backends.openai.network import Lane
from engine.backends.openai.rate_limit import retry_after
from engine.backends.openai.response import Completion
from engine.backends.openai.secret import secret_of
from engine.backends.openai.settings import OpenAISettings, origin_of
from engine.core.errors import InvalidRequest
from engine.record.facts import SERVING

ASIDE_S: Final = 5.0
"""Seconds for optional pages."""
DONE: Final = "[DONE]"
PLAIN: Final = {"Accept-Encoding": "identity"}
"""A compressed answer of a few kilobytes can be gigabytes of text, so none is asked for and none is read."""
PAGE_BYTES: Final = 8 * 2**20
"""Of a page that no request asks tokens of, such as the list of models."""
MOST_BYTES: Final = 64 * 2**20
"""Of any answer."""
LEAST_BYTES: Final = 2**20
BYTES_PER_TOKEN: Final = 4096
"""A streamed chunk with its frame, and the token's own log-probability."""
BYTES_PER_RIVAL: Final = 512
CHARACTERS_PER_TOKEN: Final = 256
LENGTHS: Final = ("max_new_tokens", "max_completion_tokens", "max_tokens")
"""Names of the length of an answer in a request."""
SPARE: Final = 4096
"""Characters and tokens beyond those that a request asks for."""
ROUTE: Final = (
    *("server", "via", "x-served-by", "x-backend", "x-backend-server", "x-instance-id", "x-pod-name"),
    *("x-litellm-model-id", "x-litellm-model-api-base", "x-portkey-provider", "x-ms-deployment-name", "x-ms-region"),
)
"""Headers in which servers, proxies and gateways name the instance behind an answer."""


@dataclass(frozen=True, slots=True)
class Received:
    """A JSON document, and what the headers of its response say about who sent it."""

    document: Any
    route: Mapping[str, str]


class Endpoint:
    """One endpoint; thread-safe.

    Args:
        settings: its address and options.

    Raises:
        InvalidRequest: the environment variable for the key is missing or holds no key.
    """

    def __init__(self, settings: OpenAISettings) -> None:
        self._settings = settings
        key = _key(settings.api_key_env)
        self.secret = secret_of(key)
        self._login = {"Authorization": f"Bearer {key}"} if key else {}
        self._home = origin_of("url", settings.url)
        self._tls = httpx2.create_ssl_context(trust_env=False)
        self._lanes: list[Lane] = []
        self._free: queue.LifoQueue[Lane] = queue.LifoQueue()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for lane in self._lanes:
            lane.close()

    def get(self, url: str, seconds: float) -> str:
        """A page's text. Raises AttemptError: the request failed."""
        with self._sent("GET", url, None, seconds) as response:
            return self.secret.clean(response.text)

    def aside(self, url: str) -> str | None:
        """An optional page."""
        try:
            return self.get(url, ASIDE_S)
        except AttemptError:
            return None

    def get_json(self, url: str, seconds: float) -> Any:
        """A page's JSON document. Raises AttemptError: the request failed."""
        return self._parsed(self.get(url, seconds))

    def aside_json(self, url: str) -> Any:
        """An optional page of JSON."""
        try:
            return self.secret.cleaned(parse(self.aside(url) or "null"))
        except (ValueError, RecursionError):
            return None

    def about(self) -> Mapping[str, Any]:
        """The server's page about itself, with its version; empty if it has none."""
        pages = (self.aside_json(self._settings.root + page) for page in self._settings.dialect.about)
        return next((page for page in pages if isinstance(page, Mapping) and page.get("version") is not None), {})

    def version(self) -> str | None:
        """The server's version, where it has a page that states it."""
        return version_of(self.about())

    def ask(self, path: str, body: Mapping[str, Any]) -> Received:
        """The whole answer to a request. Raises AttemptError: the request failed."""
        with self._sent("POST", self._settings.address(path), body, self._settings.timeout_s) as response:
            return Received(self._parsed(response.text), self._route(response))

    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[Received, None, None]:
        """The parts of a streamed answer, up to its end mark.

        Raises:
            AttemptError: a part is broken, or the mark is missing.
        """
        url, seconds = self._settings.address(path), self._settings.timeout_s
        with self._sent("POST", url, body, seconds, whole=False) as response:
            route = self._route(response)
            for event in httpx2.EventSource(response, max_event_size=answer_bytes(body)):
                if event.data == DONE:
                    return
                if event.data:
                    yield Received(self._part(event.data), route)
        raise malformed("the stream ended before the answer did")

    def _route(self, response: httpx2.Response) -> dict[str, str]:
        named = {*ROUTE, *(name.lower() for name in self._settings.instance_headers)}
        return {key: brief(self.secret.clean(response.headers[key])) for key in sorted(named & set(response.headers))}

    @contextlib.contextmanager
    def _lane(self) -> Iterator[Lane]:
        """A connection that no other request uses."""
        try:
            lane = self._free.get_nowait()
        except queue.Empty:
            lane = Lane(self._settings.proxy, self._tls)
            self._lanes.append(lane)
        try:
            yield lane
        finally:
            self._free.put(lane)

    @contextlib.contextmanager
    def _sent(
        self, method: str, url: str, body: Mapping[str, Any] | None, seconds: float, *, whole: bool = True
    ) -> Iterator[httpx2.Response]:
        """The response with status 200; with `whole`, its text is already read."""
        with self._lane() as lane:
            lane.allotment.begin(seconds, PAGE_BYTES if body is None else answer_bytes(body))
            try:
                with self._opened(lane, method, url, body, seconds) as response:
                    if response.status_code != 200:
                        response.read()
                        after = retry_after(response.headers.get("retry-after"))
                        raise of_status(response.status_code, said(response.text, self.secret), after)
                    if whole:
                        response.read()
                    yield response
            except httpx2.HTTPError as error:
                raise self._explained(error, lane, seconds) from None
            except httpx2.SSEError as error:
                raise malformed(self.secret.clean(str(error))) from None
            except (httpx2.StreamError, httpx2.InvalidURL) as error:
                raise self._broken(error) from None

    @contextlib.contextmanager
    def _opened(
        self, lane: Lane, method: str, url: str, body: Mapping[str, Any] | None, seconds: float
    ) -> Iterator[httpx2.Response]:
        limit = self._settings
        # a key is for one server: the counters may be another's
        headers = PLAIN | (self._login if origin_of("url", url) == self._home else {})
        timeout = httpx2.Timeout(min(limit.silence_s, seconds), connect=min(limit.connect_s, seconds))
        with lane.client.stream(method, url, json=body, headers=headers, timeout=timeout) as response:
            if response.headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
                raise malformed("the answer is compressed, which it was asked not to be")
            yield response

    def _explained(self, error: httpx2.HTTPError, lane: Lane, seconds: float) -> AttemptError:
        """The library's error in our words; its message could contain a malformed key."""
        if lane.allotment.exceeded:
            return malformed("the answer has more bytes than its request can need")
        if isinstance(error, httpx2.TimeoutException):
            return AttemptError(FailureKind.TIMEOUT, _timeout(error, self._settings, seconds), again=True)
        if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
            words = self.secret.clean(str(error))
            return AttemptError(FailureKind.ENGINE_DIED, f"no connection: {words}", again=True)
        return self._broken(error)

    def _broken(self, error: Exception) -> AttemptError:
        words = self.secret.clean(str(error)) or type(error).__name__
        return AttemptError(FailureKind.HTTP, f"the connection broke: {words}", again=True)

    def _parsed(self, text: str) -> Any:
        """A document without the key, in its texts as they are spelled and as they are decoded."""
        clean = self.secret.clean(text)
        try:
            return self.secret.cleaned(parse(clean))
        except (ValueError, RecursionError) as error:
            raise malformed(f"the answer is no JSON ({type(error).__name__}): {clean[:80]!r}") from None

    def _part(self, data: str) -> Any:
        """One part of a stream; a server that fails midway reports the error in a part."""
        document = self._parsed(data)
        if isinstance(document, Mapping) and document.get("error"):
            error = document["error"]
            code = error.get("code") if isinstance(error, Mapping) else None
            status = code if isinstance(code, int) and code >= 400 else 500
            raise of_status(status, said(data, self.secret), None)
        return document


def version_of(about: Mapping[str, Any]) -> str | None:
    """The version that a server's page states, and SGLang's the model that it serves."""
    model = f"{SERVING}{about['served_model_name']}" if "served_model_name" in about else ""
    return f"{about['version']}{model}"[:200] if about else None


def _key(name: str | None) -> str:
    """The key in an environment variable; empty if none is named."""
    if name is None:
        return ""
    key = os.environ.get(name, "")
    if not key:
        raise InvalidRequest(f"engine: the environment has no variable {name}; put the API key there")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidRequest(f"engine: the variable {name} holds no API key; it may not hold blanks or line ends")
    return key


def _timeout(error: Exception, limit: OpenAISettings, seconds: float) -> str:
    if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return f"no connection within {min(limit.connect_s, seconds):g} s"
    silent = min(limit.silence_s, seconds)
    return f"no whole answer within {seconds:g} s, or nothing for {silent:g} s"


def answer_bytes(body: Mapping[str, Any]) -> int:
    """The most bytes of an answer to this request, on the wire: servers may repeat the prompt too."""
    rivals = next((body[key] for key in ("top_logprobs_num", "top_logprobs", "logprobs") if key in body), 0)
    if "sampling_params" in body and body.get("stream"):
        # each part repeats the answer so far
        return MOST_BYTES
    per_token = BYTES_PER_TOKEN + BYTES_PER_RIVAL * int(rivals)
    asked = LEAST_BYTES + 8 * len(json.dumps(body)) + _length(body) * per_token
    return min(MOST_BYTES, asked)


def require_size(answer: Completion, body: Mapping[str, Any]) -> Completion:
    """The answer, if its texts and tokens can come from as many tokens as were asked for.

    Raises:
        AttemptError: it holds far more.
    """
    tokens, characters = SPARE + 2 * _length(body), SPARE + CHARACTERS_PER_TOKEN * _length(body)
    if len(answer.text) > characters:
        raise malformed(f"{len(answer.text)} characters were sent for {_length(body)} tokens")
    count = max(len(answer.token_ids or ()), len(answer.pieces or ()), len(answer.chunks))
    if count > tokens:
        raise malformed(f"{count} tokens were sent, {_length(body)} were asked for")
    return answer


def _length(body: Mapping[str, Any]) -> int:
    asked = {**body, **body.get("sampling_params", {})}
    return int(next((asked[key] for key in LENGTHS if key in asked), 0))
