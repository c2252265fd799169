"""Scheduling of requests: limits per minute, waits that a server requests, and growing pauses between tries.

The pauses of two requests differ by a digest of their names instead of a random number, so that they do not retry
together.
"""

import hashlib
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from engine.core.errors import EngineError


class ArmStopped(EngineError):
    """The run is over; no further request is sent."""


class RateLimiter:
    """Shared by all requests to one endpoint in one arm.

    Args:
        per_minute: most requests per minute, None for no limit.
        clock: seconds that never go back.
        stop: set when the arm is over; waiting calls then raise ArmStopped.
        wait: waits for `stop` for the given number of seconds.
    """

    def __init__(
        self,
        per_minute: float | None,
        clock: Callable[[], float] = time.monotonic,
        stop: threading.Event | None = None,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._clock = clock
        self._stop = stop or threading.Event()
        self._wait = wait or self._stop.wait
        self._lock = threading.Lock()
        self._next = 0.0

    def turn(self) -> None:
        """Wait until it is this request's turn. Raises ArmStopped: the arm is over."""
        with self._lock:
            now = self._clock()
            mine = max(now, self._next)
            self._next = mine + self._gap
        self.sleep(mine - now)

    def hold(self, seconds: float) -> None:
        """Hold every request for the time that the server asked for."""
        with self._lock:
            self._next = max(self._next, self._clock() + seconds)

    def sleep(self, seconds: float) -> None:
        """Wait, unless the arm is over. Raises ArmStopped: it is."""
        if self._stop.is_set() or (seconds > 0 and self._wait(seconds)):
            raise ArmStopped("the run was stopped")

    def stop(self) -> None:
        """The arm is over."""
        self._stop.set()


def pause(attempt: int, name: str, first: float, most: float) -> float:
    """Seconds before try `attempt` + 1 of a request: twice as long each time, between half and all of it."""
    whole = min(most, first * 2.0 ** min(attempt - 1, 30))
    digest = hashlib.blake2b(f"{name}/{attempt}".encode(), digest_size=4).digest()
    return whole * (0.5 + 0.5 * int.from_bytes(digest, "big") / 2**32)


def retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks for (RFC 9110, 10.2.3); None if it is unreadable."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        due = parsedate_to_datetime(header)
    except (TypeError, ValueError):
        return None
    due = due if due.tzinfo else due.replace(tzinfo=UTC)
    return max(0.0, (due - (now or datetime.now(UTC))).total_seconds())
