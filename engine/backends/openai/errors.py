"""Failures between a client and a server, and whether a retry is worthwhile.

An error belongs to one attempt of one request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from engine.backends.openai.documents import parse

if TYPE_CHECKING:
    from engine.backends.openai.secret import Secret

WORDS: Final = 300
"""Characters of a server's own message that are kept."""
AGAIN: Final = frozenset((408, 409, 425, 429))
"""Temporary refusals; all server errors, 500 and above, are temporary too."""


class FailureKind(StrEnum):
    """The cause of a failed request (`engine.backends.interface.Engine.generate`)."""

    ENGINE_DIED = "engine_died"
    """The server no longer accepts connections."""
    REFUSED = "refused"
    """The server refuses this request."""
    TIMEOUT = "timeout"
    HTTP = "http"
    """The server or the connection failed."""
    MALFORMED = "malformed"
    """The answer is not one."""
    WITHDRAWN = "withdrawn"
    """This client left."""


@dataclass(slots=True)
class AttemptError(Exception):
    """One attempt failed. `after` is the number of seconds that the server asks to wait."""

    kind: FailureKind
    message: str
    again: bool
    status: int | None = None
    after: float | None = None

    def __str__(self) -> str:
        return self.message

    def facts(self, attempts: int) -> dict[str, Any]:
        """For the record of a request that failed for good."""
        document: dict[str, Any] = {"kind": self.kind.value, "message": self.message, "attempts": attempts}
        return document if self.status is None else document | {"status": self.status}


def malformed(message: str) -> AttemptError:
    """A malformed answer; a retry may succeed."""
    return AttemptError(FailureKind.MALFORMED, message, again=True)


def of_status(status: int, words: str, after: float | None) -> AttemptError:
    """The error for a status other than 200; `words` are the server's, in one line."""
    message = f"status {status}: {words}"
    if status in AGAIN or status >= 500:
        return AttemptError(FailureKind.HTTP, message, again=True, status=status, after=after)
    if 300 <= status < 400:
        message = f"status {status}: the server answers from another address; write that one as url"
    return AttemptError(FailureKind.REFUSED, message, again=False, status=status)


def said(text: str, secret: Secret) -> str:
    """A server's own words in one line, without the key: the message of an error document, or the text as it is."""
    try:
        document = parse(secret.clean(text))
    except (ValueError, RecursionError):
        document = text
    while isinstance(document, Mapping):
        inner = next((document[key] for key in ("error", "message", "detail") if document.get(key)), None)
        if inner is None:
            break
        document = inner
    # before it is cut: half of a key would not be recognised
    return " ".join(secret.clean(str(document)).split())[:WORDS] or "no words"
