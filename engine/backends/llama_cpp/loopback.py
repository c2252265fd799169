"""HTTP to llama.cpp's server on this machine, with the standard library alone: its pages, its answers, its counters."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from engine.backends.openai.metrics import counters

MOVES_S: Final = 20.0
"""Seconds in which a living server answers between two steps."""
PAGE_S: Final = 120.0


class RefusedRequest(Exception):
    """The server answered a request with an error; the message holds its words."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The body of an answer, and how long it took."""

    body: Mapping[str, Any]
    microseconds: int


class LoopbackServer:
    """A server at `http://HOST:PORT`."""

    def __init__(self, address: str) -> None:
        result = urlsplit(address)
        self._host, self._port = result.hostname or "127.0.0.1", result.port

    def get(self, path: str, seconds: float = PAGE_S) -> Any:
        """A page of JSON."""
        return json.loads(self._exchange("GET", path, None, seconds))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer to a request, however long it takes: the parent ends a server whose queue stands still.

        Raises:
            RefusedRequest: it is an error.
        """
        return json.loads(self._exchange("POST", path, json.dumps(body), None))

    def counters(self) -> dict[str, int]:
        """The server's counters of speculation, by name, and by position where it counts positions."""
        page = self._exchange("GET", "/metrics", None, PAGE_S).decode()
        return {name: round(value) for name, value in counters(page).items() if math.isfinite(value)}

    def moves(self) -> bool:
        """True if the server's queue answers between two steps."""
        with contextlib.suppress(OSError, http.client.HTTPException, RefusedRequest):
            self.get("/slots", MOVES_S)
            return True
        return False

    def _exchange(self, method: str, path: str, body: str | None, seconds: float | None) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != http.client.OK:
            raise RefusedRequest(_words(content) or f"status {answer.status}")
        return content


def _words(content: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(content)["error"]["message"])
    return ""
