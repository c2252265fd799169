"""The connection to one endpoint: requests out, JSON documents back, every failure as an `AttemptError`.

The only place that knows the API key and the HTTP library. The key goes to the origin of `url` only, and is removed
from every server message. Proxies, passwords and certificates in the environment are ignored. A server is a stranger:
what one answer can cost is bounded (`engine.backends.openai.bounds`).
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx2

from engine.backends.openai.bounds import PAGE_BYTES, answer_bytes
from engine.backends.openai.documents import parse
from engine.backends.openai.errors import AttemptError, FailureKind, malformed, of_status, said
from engine.backends.openai.network import Lane
from engine.backends.openai.rate_limit import retry_after
from engine.backends.openai.secret import secret_of
from engine.backends.openai.settings import OpenAISettings, origin_of
from engine.core.errors import InvalidRequest

ASIDE_S: Final = 5.0
"""Seconds for optional pages."""
DONE: Final = "[DONE]"
PLAIN: Final = {"Accept-Encoding": "identity"}
"""A compressed answer of a few kilobytes can be gigabytes of text, so none is asked for and none is read."""


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
        """A page's text.

        Raises:
            AttemptError: the request failed.
        """
        with self._sent("GET", url, None, seconds) as response:
            return self.secret.clean(response.text)

    def aside(self, url: str) -> str | None:
        """An optional page."""
        try:
            return self.get(url, ASIDE_S)
        except AttemptError:
            return None

    def get_json(self, url: str, seconds: float) -> Any:
        """A page's JSON document.

        Raises:
            AttemptError: the request failed.
        """
        return self._parsed(self.get(url, seconds))

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """The whole answer to a request.

        Raises:
            AttemptError: the request failed.
        """
        with self._sent("POST", self._settings.url + path, body, self._settings.timeout_s) as response:
            return self._parsed(response.text)

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """The parts of a streamed answer, up to its end mark.

        Raises:
            AttemptError: a part is broken, or the mark is missing.
        """
        url, seconds = self._settings.url + path, self._settings.timeout_s
        with self._sent("POST", url, body, seconds, whole=False) as response:
            for event in httpx2.EventSource(response, max_event_size=answer_bytes(body)):
                if event.data == DONE:
                    return
                if event.data:
                    yield self._part(event.data)
        raise malformed("the stream ended before the answer did")

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
        """The response before it is read."""
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
