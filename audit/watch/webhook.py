"""Send an alarm to a webhook: JSON, signed with HMAC-SHA256 under a shared key.

The receiver computes HMAC-SHA256 of the timestamp's header, a full stop and the body, and compares; an old timestamp is
a replay. Redirects are not followed.
"""

import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from audit.errors import UserError
from audit.store.base.keys import require_private
from engine.backends.openai.network import Lane
from engine.backends.openai.settings import origin_of
from engine.core.errors import InvalidRequest

SIGNATURE: Final = "X-Specaudit-Signature"
TIMESTAMP: Final = "X-Specaudit-Timestamp"
SHORTEST: Final = 16
TIMEOUT_S: Final = 10.0
ANSWER_BYTES: Final = 2**20
TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class AlarmWebhook:
    """An address and the key that signs what goes there."""

    url: str
    key: bytes = field(repr=False)

    def send(self, document: Mapping[str, Any]) -> str | None:
        """Send a document, in up to three attempts; returns why it failed, None if the receiver took it."""
        body = json.dumps(document, sort_keys=True).encode()
        problem = None
        for wait in range(TRIES):
            time.sleep(float(wait))
            problem = self._attempt(body)
            if problem is None:
                break
        return problem

    def _attempt(self, body: bytes) -> str | None:
        stamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            TIMESTAMP: stamp,
            SIGNATURE: f"sha256={signature(self.key, stamp, body)}",
        }
        lane = Lane(None, httpx2.create_ssl_context(trust_env=False))
        lane.allotment.begin(TIMEOUT_S, ANSWER_BYTES)
        try:
            answer = lane.client.post(self.url, content=body, headers=headers, timeout=TIMEOUT_S)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            lane.close()
        return None if 200 <= answer.status_code < 300 else f"status {answer.status_code}"


def signature(key: bytes, stamp: str, body: bytes) -> str:
    """Hex HMAC-SHA256 of the timestamp, a full stop and the body."""
    return hmac.digest(key, stamp.encode("ascii") + b"." + body, "sha256").hex()


def webhook_of(url: str, key_file: Path) -> AlarmWebhook:
    """The webhook at an address, with the key in a file that only its owner can read.

    Raises:
        UserError: the address, or the file.
    """
    try:
        origin_of("--webhook", url)
    except InvalidRequest as error:
        raise UserError(str(error).removeprefix("engine: ")) from error
    try:
        key = key_file.read_bytes().strip()
        require_private(key_file, "key")
    except OSError as error:
        raise UserError(f"{key_file}: cannot be read: {error.strerror}") from error
    if len(key) < SHORTEST:
        raise UserError(f"{key_file}: a key has at least {SHORTEST} bytes; make one: openssl rand -hex 32")
    return AlarmWebhook(url, key)
