"""One request asked until it is answered: tries, pauses, and both ways of getting the answer.

Knows nothing about records, nor about what the answer means.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.backends.openai.client import Endpoint
from engine.backends.openai.errors import Trouble
from engine.backends.openai.rate_limit import Pace, pause
from engine.backends.openai.request import path, streamed
from engine.backends.openai.response import Answer, Collector, read
from engine.backends.openai.settings import Settings, Streaming


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of a request: an answer, or the last trouble.

    lost: the troubles of the tries before, in words.
    streamed: the other answer, where both ways were asked for.
    first_us: microseconds to the first text, where the answer was streamed.
    """

    attempts: int
    answer: Answer | None = None
    trouble: Trouble | None = None
    streamed: Answer | None = None
    latency_us: int = 0
    first_us: int | None = None
    lost: tuple[str, ...] = field(default=())

    def facts(self) -> dict[str, Any]:
        """Of a request without an answer."""
        assert self.trouble is not None
        error = self.trouble.facts(self.attempts)
        last = f"{error['kind']}: {error['message']}"
        if self.lost and self.lost[0] != last:
            # a server that died is unreachable in the end; the first try has the reason
            error["message"] += f"; the first try: {self.lost[0]}"
        return {"error": error, **({"lost": list(self.lost)} if self.lost else {})}


@dataclass(frozen=True, slots=True)
class _Got:
    answer: Answer
    first_us: int | None = None


@dataclass(frozen=True, slots=True)
class Asking:
    """How requests are asked in one arm."""

    settings: Settings
    endpoint: Endpoint
    pace: Pace

    def ask(self, name: str, body: Mapping[str, Any]) -> Asked:
        """Ask until there is an answer, a refusal, or no try left.

        Raises:
            pace.Stopped: the arm is over.
        """
        lost: list[str] = []
        for attempt in range(1, self.settings.tries + 1):
            self.pace.turn()
            began = time.monotonic()
            try:
                found = self._once(body)
            except Trouble as trouble:
                latency = int(1e6 * (time.monotonic() - began))
                if not self._again(trouble, attempt):
                    return Asked(attempt, trouble=trouble, latency_us=latency, lost=tuple(lost))
                lost.append(f"{trouble.kind.value}: {trouble.message}")
                self._wait(trouble, attempt, name)
            else:
                return _with(found, attempt, lost)
        raise AssertionError("the last try returns")

    def _again(self, trouble: Trouble, attempt: int) -> bool:
        """Whether another try is worth it; a server that asks for more than `max_wait_s` is not waited for."""
        patient = trouble.after is None or trouble.after <= self.settings.max_wait_s
        return trouble.again and patient and attempt < self.settings.tries

    def _wait(self, trouble: Trouble, attempt: int, name: str) -> None:
        if trouble.after is not None:
            self.pace.hold(trouble.after)
        else:
            self.pace.sleep(pause(attempt, name, self.settings.backoff_s, self.settings.max_wait_s))

    def _once(self, body: Mapping[str, Any]) -> Asked:
        began = time.monotonic()
        way = self.settings.stream
        whole = None if way is Streaming.STREAMED else read(self.endpoint.ask(path(self.settings), body))
        latency = int(1e6 * (time.monotonic() - began))
        if way is Streaming.WHOLE:
            return Asked(1, whole, latency_us=latency)
        if way is Streaming.BOTH:
            self.pace.turn()
        got = self._streamed(body)
        latency = latency if whole is not None else int(1e6 * (time.monotonic() - began))
        return Asked(1, whole or got.answer, None, got.answer if whole else None, latency, got.first_us)

    def _streamed(self, body: Mapping[str, Any]) -> _Got:
        began, collector, first = time.monotonic(), Collector(), None
        for part in self.endpoint.stream(path(self.settings), streamed(body)):
            if collector.add(part) and first is None:
                first = int(1e6 * (time.monotonic() - began))
        return _Got(collector.answer(), first)


def _with(found: Asked, attempts: int, lost: list[str]) -> Asked:
    return replace(found, attempts=attempts, lost=tuple(lost))
