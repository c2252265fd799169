"""Refusals in OpenAI's shape: a status, and a document with message, type, parameter and code."""

from dataclasses import dataclass
from typing import Any, Final

INVALID: Final = "invalid_request_error"
SERVER: Final = "server_error"


@dataclass(frozen=True)
class ApiRefusal(Exception):
    """A request that gets an error instead of an answer."""

    status: int
    message: str
    kind: str = INVALID
    param: str | None = None
    code: str | None = None

    def __str__(self) -> str:
        return self.message

    def document(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiRefusal:
    """A request that is wrong: 400."""
    return ApiRefusal(400, message, INVALID, param, code)


def full(message: str) -> ApiRefusal:
    """The queue is full: 429; clients try again."""
    return ApiRefusal(429, message, "rate_limit_error", code="queue_full")


def unavailable(message: str) -> ApiRefusal:
    """The server cannot answer any more: 503."""
    return ApiRefusal(503, message, SERVER, code="unavailable")


def failed(message: str) -> ApiRefusal:
    """The engine failed on a running request: 500."""
    return ApiRefusal(500, message, SERVER, code="engine_failed")


def too_slow(message: str) -> ApiRefusal:
    """The time of a request has passed: 408."""
    return ApiRefusal(408, message, "timeout", code="timeout")
