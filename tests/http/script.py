"""What a test server does wrong, and when: one misdeed per request, in the order in which they come."""

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Misdeed:
    """Nothing by default: the request is answered.

    status: answer with this status and `text` instead.
    headers: further headers of the answer.
    cut: send so many bytes of the answer as if they were all of it.
    reset: send so many bytes of the answer, then reset the connection.
    pause_s: wait so long before the answer.
    drip_s: wait so long between any two pieces of `piece` bytes.
    swap: replace the first text in the answer's bytes by the second, so many `times`.
    """

    status: int = 200
    headers: dict = field(default_factory=dict)
    text: str = '{"error": {"message": "on purpose"}}'
    cut: int | None = None
    reset: int | None = None
    pause_s: float = 0.0
    drip_s: float = 0.0
    piece: int = 16
    swap: tuple = ()
    times: int = 1


FINE = Misdeed()


@dataclass
class Script:
    """Misdeeds in order, then none; `always` is for every request that none is left for."""

    waiting: list = field(default_factory=list)
    always: Misdeed = FINE
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self):
        with self.lock:
            return self.waiting.pop(0) if self.waiting else self.always
