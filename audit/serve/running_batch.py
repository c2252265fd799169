"""The requests of a server, between its event loop and the loop of the engine: a queue, the running rows, their ends.

Requests start in the order in which they come. Every choice of a request is a request of the engine.

Log-probabilities of committed tokens, from the rows that decided them: the target's own, before any transform.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from audit.serve.events import ChoiceEnd, ChoiceFailure, ChoiceStep, DraftAccount, Inbox, TokenScore
from audit.serve.limits import ServeLimits
from audit.serve.meters import ServeMeters
from audit.serve.refusals import ApiRefusal, failed, full, invalid, too_slow, unavailable
from engine.core.types import Generation, Request
from engine.decode.arrivals import CommittedStep, Withdrawal


def scores_of(step: CommittedStep, top: int) -> tuple[TokenScore, ...]:
    """The scores of a step's tokens, with the `top` likeliest of each row, the likeliest first."""
    return tuple(_score(step.rows.logits[item.row], item.token, top) for item in step.outcome.emitted)


def _score(logits: NDArray[np.floating[Any]], token: int, top: int) -> TokenScore:
    row = logits.astype(np.float64)
    highest = row.max()
    logs = row - (highest + np.log(np.exp(row - highest).sum()))
    if not top:
        return TokenScore(token, float(logs[token]))
    best = np.argpartition(-logs, min(top, len(logs)) - 1)[:top]
    # ties go to the lower id, as in decoding
    ordered = sorted(best.tolist(), key=lambda item: (-logs[item], item))
    return TokenScore(token, float(logs[token]), tuple((item, float(logs[item])) for item in ordered))


GONE: Final = Withdrawal("http", "the client disconnected")
STOPPED: Final = "the server is stopping"


@dataclass(slots=True)
class Ticket:
    """One choice on its way.

    follow: its steps are handed over, not only its end.
    top: alternatives per token; None without log-probabilities.
    """

    request: Request
    choice: int
    domain: str
    inbox: Inbox
    follow: bool
    top: int | None
    deadline: float
    created: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    last: float = 0.0
    tokens: int = 0
    drafts: DraftAccount = field(default_factory=DraftAccount)
    gone: Withdrawal | None = None


class RunningBatch:
    """The `engine.decode.arrivals.Arrivals` of a server.

    Methods of `Arrivals` are called by the engine's thread, the others by the event loop's. After `close` nothing new
    is taken in; what waits and runs ends by itself.
    """

    def __init__(self, name: str, limits: ServeLimits, meters: ServeMeters) -> None:
        self._name = name
        self._limits = limits
        self._meters = meters
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._active: dict[str, Ticket] = {}
        self._domains: dict[str, str] = {}
        self._round = 0
        self._closed: ApiRefusal | None = None

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Queue the choices of a request. Raises ApiRefusal: the queue is full, or the server takes nothing in."""
        with self._changed:
            if self._closed is not None:
                raise self._closed
            if len(self._waiting) + len(tickets) > self._limits.queue:
                raise full(f"{len(self._waiting)} choices wait already, at most {self._limits.queue} may; try again")
            self._waiting.extend(tickets)
            self._changed.notify()
            self._count()

    def leave(self, tickets: Sequence[Ticket], why: Withdrawal = GONE) -> None:
        """Take choices out whose answer nobody waits for; ended ones stay as they are."""
        with self._changed:
            for ticket in tickets:
                ticket.gone = ticket.gone or why
            self._waiting = deque(ticket for ticket in self._waiting if ticket.gone is None)
            self._count()

    def close(self, refusal: ApiRefusal | None = None) -> None:
        """Take nothing in any more; `refusal` says why."""
        with self._changed:
            self._closed = self._closed or refusal or unavailable(STOPPED)
            self._changed.notify()

    @property
    def closed(self) -> ApiRefusal | None:
        """Why nothing is taken in; None while the server works."""
        return self._closed

    @property
    def load(self) -> tuple[int, int]:
        """Running and waiting choices."""
        with self._changed:
            return len(self._active), len(self._waiting)

    def fail(self, error: str, *, waiting: bool = False) -> None:
        """End what runs without an answer; with `waiting` also what waits."""
        with self._changed:
            lost = [*self._active.values(), *(self._waiting if waiting else ())]
            for name in self._active:
                del self._domains[name]
            self._active.clear()
            self._round += 1
            if waiting:
                self._waiting.clear()
            self._count()
        for ticket in lost:
            self._end(ticket, "error")
            ticket.inbox.put(ChoiceFailure(ticket.choice, failed(error)))

    def domain_of(self, request: str) -> str:
        """The domain of an ended choice, for its record; known once."""
        with self._changed:
            return self._domains.pop(request)

    @property
    def call(self) -> str:
        """The server's run, and how many times its loop has begun."""
        return f"{self._name}/{self._round}"

    def take(self) -> Request | None:
        """The choice that has waited longest; those whose time has passed are refused."""
        with self._changed:
            while self._waiting:
                ticket = self._waiting.popleft()
                now = time.perf_counter()
                if now < ticket.deadline:
                    ticket.started = ticket.last = now
                    self._active[ticket.request.id] = ticket
                    self._domains[ticket.request.id] = ticket.domain
                    self._meters.started(now - ticket.created, len(ticket.request.prompt))
                    self._count()
                    return ticket.request
                self._late(ticket)
            self._count()
            return None

    def wait(self) -> bool:
        """Wait for a choice; False once the server is closed and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed is not None)
            return bool(self._waiting)

    def withdrawn(self, request: Request) -> Withdrawal | None:
        """The client is gone, or the time has passed."""
        ticket = self._active[request.id]
        if ticket.gone is None and time.perf_counter() < ticket.deadline:
            return None
        with self._changed:
            del self._active[request.id]
            self._count()
        if ticket.gone is None:
            self._late(ticket)
            return Withdrawal("timeout", f"{self._limits.seconds:g} s have passed")
        self._end(ticket, "abort")
        return ticket.gone

    def committed(self, request: Request, step: CommittedStep) -> None:
        """Count a step, and hand it over where somebody follows it."""
        ticket = self._active[request.id]
        drafted, accepted = len(step.proposal.tree), step.outcome.n_accepted
        ticket.drafts.drafted.append(drafted)
        ticket.drafts.accepted.append(accepted)
        tokens = tuple(item.token for item in step.outcome.emitted)
        now = time.perf_counter()
        since = ticket.created if not ticket.tokens else ticket.last
        self._meters.stepped(len(tokens), now - since, drafted, accepted, first=not ticket.tokens)
        ticket.tokens, ticket.last = ticket.tokens + len(tokens), now
        if ticket.follow:
            scores = () if ticket.top is None else scores_of(step, ticket.top)
            ticket.inbox.put(ChoiceStep(ticket.choice, tokens, scores, step.text, step.reason is not None))

    def finished(self, generation: Generation) -> None:
        """Hand over a whole answer."""
        with self._changed:
            ticket = self._active.pop(generation.request.id)
            self._count()
        self._end(ticket, generation.finish_reason.value)
        ticket.inbox.put(ChoiceEnd(ticket.choice, generation, ticket.drafts))

    def failed(self, request: Request, why: Withdrawal) -> None:
        """Refuse a choice whose grammar gave up."""
        with self._changed:
            ticket = self._active.pop(request.id)
            self._count()
        self._end(ticket, "error")
        ticket.inbox.put(ChoiceFailure(ticket.choice, invalid(why.message)))

    def _late(self, ticket: Ticket) -> None:
        self._end(ticket, "timeout")
        refusal = too_slow(f"the answer did not end within {self._limits.seconds:g} s, waiting for a row included")
        ticket.inbox.put(ChoiceFailure(ticket.choice, refusal))

    def _end(self, ticket: Ticket, reason: str) -> None:
        self._meters.ended(reason, ticket.tokens, time.perf_counter() - ticket.created, ticket.started)

    def _count(self) -> None:
        self._meters.load(len(self._active), len(self._waiting))
