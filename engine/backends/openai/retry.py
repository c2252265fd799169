"""One request sent until it is answered: tries, pauses, and both ways of receiving the answer."""

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.backends.openai.client import Endpoint, require_size
from engine.backends.openai.errors import AttemptError, FailureKind
from engine.backends.openai.forms.draft_counts import predicted
from engine.backends.openai.forms.native import reader_of
from engine.backends.openai.rate_limit import RateLimiter, pause
from engine.backends.openai.request import path, streamed
from engine.backends.openai.response import Collector, Completion, read, without_key
from engine.backends.openai.settings import OpenAISettings, Streaming
from engine.faults.services import SOUND, AnswerPlace, ServiceFault


@dataclass(frozen=True, slots=True)
class RequestResult:
    """The result of a request: an answer, or the last error.

    lost: the errors of earlier tries, in words.
    streamed: the streamed answer, if both ways were requested.
    first_us: microseconds to the first text of a streamed answer.
    """

    attempts: int
    answer: Completion | None = None
    attempt_error: AttemptError | None = None
    streamed: Completion | None = None
    latency_us: int = 0
    first_us: int | None = None
    lost: tuple[str, ...] = field(default=())

    def facts(self) -> dict[str, Any]:
        """Of a request without an answer."""
        assert self.attempt_error is not None
        error = self.attempt_error.facts(self.attempts)
        last = f"{error['kind']}: {error['message']}"
        if self.lost and self.lost[0] != last:
            # a dead server is unreachable at the last try; the first try has the reason
            error["message"] += f"; the first try: {self.lost[0]}"
        return {"error": error, **({"lost": list(self.lost)} if self.lost else {})}


@dataclass(frozen=True, slots=True)
class RetryingClient:
    """The settings of requests in one arm, and the fault that the service is given on purpose."""

    settings: OpenAISettings
    endpoint: Endpoint
    rate_limiter: RateLimiter
    fault: ServiceFault = SOUND
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    cancelled: deque[Mapping[str, Any]] = field(default_factory=deque)
    """The bodies of requests whose client left and whose place nobody took since."""

    def ask(self, name: str, body: Mapping[str, Any]) -> RequestResult:
        """Send the request until there is an answer, a refusal, or no try left.

        Raises:
            rate_limit.ArmStopped: the arm is over.
        """
        lost: list[str] = []
        for attempt in range(1, self.settings.tries + 1):
            self.rate_limiter.turn()
            began = time.monotonic()
            try:
                result = self._once(self._taken(body))
            except AttemptError as attempt_error:
                latency = int(1e6 * (time.monotonic() - began))
                if not self._again(attempt_error, attempt):
                    return RequestResult(attempt, attempt_error=attempt_error, latency_us=latency, lost=tuple(lost))
                lost.append(f"{attempt_error.kind.value}: {attempt_error.message}")
                if attempt_error.after is not None:
                    self.rate_limiter.hold(attempt_error.after)
                else:
                    self.rate_limiter.sleep(pause(attempt, name, self.settings.backoff_s, self.settings.max_wait_s))
            else:
                return replace(result, attempts=attempt, lost=tuple(lost))
        raise AssertionError("the last try returns")

    def leave(self, body: Mapping[str, Any], after: int) -> RequestResult:
        """Send the request as a client that closes its connection after so many parts of the streamed answer."""
        self.rate_limiter.turn()
        told = AttemptError(FailureKind.WITHDRAWN, "its client left", again=False)
        try:
            with contextlib.closing(self.endpoint.stream(path(self.settings), streamed(body))) as parts:
                for _part in itertools.islice(parts, after):
                    pass
        except AttemptError as attempt_error:
            told = attempt_error
        self.cancelled.append(body)
        return RequestResult(1, attempt_error=told)

    def _taken(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The request, in the place of one whose client left if there is such a place."""
        try:
            return self.fault.place(body, self.cancelled.popleft())
        except IndexError:
            return body

    def _again(self, attempt_error: AttemptError, attempt: int) -> bool:
        """True if another try is worthwhile; a server that asks to wait longer than `max_wait_s` gets none."""
        patient = attempt_error.after is None or attempt_error.after <= self.settings.max_wait_s
        return attempt_error.again and patient and attempt < self.settings.tries

    def _once(self, body: Mapping[str, Any]) -> RequestResult:
        began = time.monotonic()
        way = self.settings.stream
        whole = None if way is Streaming.STREAMED else self._whole(body)
        latency = int(1e6 * (time.monotonic() - began))
        if way is Streaming.WHOLE:
            return RequestResult(1, whole, latency_us=latency)
        if way is Streaming.BOTH:
            self.rate_limiter.turn()
        parts, first_us = self._streamed(body)
        latency = latency if whole is not None else int(1e6 * (time.monotonic() - began))
        return RequestResult(1, whole or parts, None, parts if whole else None, latency, first_us)

    def _whole(self, body: Mapping[str, Any]) -> Completion:
        received = self.endpoint.ask(path(self.settings), self.fault.body(body))
        document = reader_of(self.settings)(received.document)
        answered = self.fault.answer(document, AnswerPlace(next(self.numbers)))
        return self._cleared(read(answered, self.settings.logprobs), received.route, body)

    def _streamed(self, body: Mapping[str, Any]) -> tuple[Completion, int | None]:
        """The answer, and microseconds to its first text."""
        began, collector, first = time.monotonic(), Collector(self.settings.logprobs), None
        route: Mapping[str, str] = {}
        number, reader = next(self.numbers), reader_of(self.settings)
        for at, part in enumerate(self.endpoint.stream(path(self.settings), streamed(self.fault.body(body)))):
            route, document = part.route, reader(part.document)
            if collector.add(self.fault.answer(document, AnswerPlace(number, at))) and first is None:
                first = int(1e6 * (time.monotonic() - began))
        return self._cleared(collector.answer(), route, body), first

    def _cleared(self, answer: Completion, route: Mapping[str, str], body: Mapping[str, Any]) -> Completion:
        """The answer in its bounds and without the key, with what its headers say about who sent it."""
        whole = without_key(require_size(answer, body), self.endpoint.secret)
        if self.settings.dialect.quiet:
            whole = replace(whole, known_stop=True)
        if whole.speculation is None and self.settings.dialect.predicts and "prediction" not in body:
            whole = replace(whole, speculation=predicted(whole.usage))
        return replace(whole, meta={**whole.meta, "route": dict(route)}) if route else whole
