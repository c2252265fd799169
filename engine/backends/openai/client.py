"""The connection to one endpoint: requests out, JSON documents back, every failure as an `AttemptError`.

The only place that knows the API key and the HTTP library. The client removes the key from every server message. It
ignores proxies, passwords and certificates in the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx2

from engine.backends.openai.errors import AttemptError, FailureKind, malformed, of_status, said
from engine.backends.openai.rate_limit import retry_after
from engine.backends.openai.settings import OpenAISettings
from engine.core.errors import InvalidRequest

MOST: Final = 64 * 2**20
"""Bytes of one answer."""
SHORTEST_KEY: Final = 8
"""Shorter keys are placeholders such as EMPTY and may occur in ordinary text."""
DEADLINE: Final = "specaudit_deadline"
ASIDE_S: Final = 5.0
"""Seconds for optional pages."""
DONE: Final = "[DONE]"


class DeadlineStream(httpx2.SyncByteStream):
    """An answer's bytes up to a deadline and a size limit; the library's timeout covers only single reads."""

    def __init__(self, inner: httpx2.SyncByteStream, deadline: float) -> None:
        self._inner = inner
        self._deadline = deadline

    def __iter__(self) -> Iterator[bytes]:
        count = 0
        for part in self._inner:
            count += len(part)
            if time.monotonic() > self._deadline:
                raise httpx2.ReadTimeout("the answer was not whole in time")
            if count > MOST:
                raise httpx2.DecodingError(f"the answer has more than {MOST} bytes")
            yield part

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()


class DeadlineTransport(httpx2.BaseTransport):
    """Another transport whose answers end at the request's deadline."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self._inner = inner

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send; the answer is read later."""
        response = self._inner.handle_request(request)
        deadline = request.extensions.get(DEADLINE)
        if deadline is not None and isinstance(response.stream, httpx2.SyncByteStream):
            response.stream = DeadlineStream(response.stream, float(deadline))
        return response

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


class Endpoint:
    """One endpoint; thread-safe.

    Args:
        settings: its address and options.
        rows: connections at once.

    Raises:
        InvalidRequest: the environment variable for the key is missing or holds no key.
    """

    def __init__(self, settings: OpenAISettings, rows: int) -> None:
        self._settings = settings
        self._key = _key(settings.api_key_env)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx2.Limits(max_connections=rows + 1, max_keepalive_connections=rows + 1)
        inner = httpx2.HTTPTransport(limits=limits, proxy=settings.proxy, trust_env=False)
        self._client = httpx2.Client(headers=headers, transport=DeadlineTransport(inner), trust_env=False)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def get(self, url: str, seconds: float) -> str:
        """A page's text.

        Raises:
            AttemptError: the request failed.
        """
        with self._sent("GET", url, None, seconds) as response:
            return self._clean(response.text)

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
        return _parsed(self.get(url, seconds))

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """The whole answer to a request.

        Raises:
            AttemptError: the request failed.
        """
        with self._sent("POST", self._settings.url + path, body, self._settings.timeout_s) as response:
            return _parsed(self._clean(response.text))

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """The parts of a streamed answer, up to its end mark.

        Raises:
            AttemptError: a part is broken, or the mark is missing.
        """
        url, seconds = self._settings.url + path, self._settings.timeout_s
        with self._sent("POST", url, body, seconds, whole=False) as response:
            for event in httpx2.EventSource(response, max_event_size=MOST):
                if event.data == DONE:
                    return
                if event.data:
                    yield _part(self._clean(event.data))
        raise malformed("the stream ended before the answer did")

    @contextlib.contextmanager
    def _sent(
        self, method: str, url: str, body: Mapping[str, Any] | None, seconds: float, *, whole: bool = True
    ) -> Iterator[httpx2.Response]:
        """The response with status 200; with `whole`, its text is already read."""
        limit = self._settings
        timeout = httpx2.Timeout(min(limit.silence_s, seconds), connect=min(limit.connect_s, seconds))
        until = {DEADLINE: time.monotonic() + seconds}
        try:
            # the library's message could contain a malformed key
            with self._client.stream(method, url, json=body, timeout=timeout, extensions=until) as response:
                if response.status_code != 200:
                    response.read()
                    after = retry_after(response.headers.get("retry-after"))
                    raise of_status(response.status_code, self._clean(response.text), after)
                if whole:
                    response.read()
                yield response
        except httpx2.TimeoutException as error:
            raise AttemptError(FailureKind.TIMEOUT, _timeout(error, limit, seconds), again=True) from None
        except (httpx2.ConnectError, httpx2.ProxyError) as error:
            raise AttemptError(
                FailureKind.ENGINE_DIED, f"no connection: {self._clean(str(error))}", again=True
            ) from None
        except (httpx2.DecodingError, httpx2.SSEError) as error:
            raise malformed(self._clean(str(error))) from None
        except (httpx2.TransportError, httpx2.StreamError, httpx2.InvalidURL) as error:
            told = self._clean(str(error)) or type(error).__name__
            raise AttemptError(FailureKind.HTTP, f"the connection broke: {told}", again=True) from None

    def _clean(self, text: str) -> str:
        """Text without the key."""
        return text if len(self._key) < SHORTEST_KEY else text.replace(self._key, "***")


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


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise malformed(f"the answer is no JSON ({type(error).__name__}): {text[:80]!r}") from None


def _part(data: str) -> Any:
    """One part of a stream; a server that fails midway reports the error in a part."""
    document = _parsed(data)
    if isinstance(document, Mapping) and document.get("error"):
        error = document["error"]
        code = error.get("code") if isinstance(error, Mapping) else None
        status = code if isinstance(code, int) and code >= 400 else 500
        raise of_status(status, said(data), None)
    return document
