"""Where a running loop gets its requests, and who hears of their tokens.

Requests join and leave the batch between steps. The loop calls everything here in its own thread; a list of requests is
the simple case, a server the other.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from engine.core.types import FinishReason, Generation, Proposal, Request, StepOutcome
from engine.sampling.transforms import TargetRows


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Why a request ends without an answer; `kind` as in `engine.backends.interface.Engine.generate`."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class CommittedStep:
    """One step's result for one request. The rows are the model's own buffers, valid during the call only.

    text: the text that has left so far, where filters decide on it; None without filters.
    reason: why the request ends with this step; None if it continues.
    """

    proposal: Proposal
    outcome: StepOutcome
    rows: TargetRows
    text: str | None
    reason: FinishReason | None


class Arrivals(Protocol):
    """The requests of a running loop. All have been accepted by the engine before."""

    @property
    def call(self) -> str:
        """Name of this run of the loop in records (`engine.decode.batch_facts.BatchPlace`)."""

    def take(self) -> Request | None:
        """The next request for a free row; None if none waits."""

    def wait(self) -> bool:
        """Called while no row is active: True as soon as a request waits, False if none comes any more."""

    def withdrawn(self, request: Request) -> Withdrawal | None:
        """Why an active request must leave its row; None if it stays."""

    def committed(self, request: Request, step: CommittedStep) -> None:
        """A step's tokens are final."""

    def finished(self, generation: Generation) -> None:
        """A request has its answer; its record, which is written in another thread, comes later."""

    def failed(self, request: Request, why: Withdrawal) -> None:
        """An active request left its row without an answer, because its grammar gave up."""


LEFT: Final = Withdrawal("withdrawn", "its client left")


class ListedRequests:
    """Requests that are all known at the beginning; nobody hears of them before their records are written."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._waiting = deque(requests)
        self._tokens = Counter[str]()
        self.call = requests[0].id if requests else ""

    def take(self) -> Request | None:
        """The next of the list."""
        return self._waiting.popleft() if self._waiting else None

    def wait(self) -> bool:
        """False, because a free row has taken every request there is."""
        return False

    def withdrawn(self, request: Request) -> Withdrawal | None:
        """Once the request has as many tokens as its client waits for."""
        return LEFT if 0 < request.leaves_after <= self._tokens[request.id] else None

    def committed(self, request: Request, step: CommittedStep) -> None:
        """Count the tokens of a request whose client leaves."""
        if request.leaves_after:
            self._tokens[request.id] += len(step.outcome.emitted)

    def finished(self, generation: Generation) -> None:
        """Nothing."""

    def failed(self, request: Request, why: Withdrawal) -> None:
        """Nothing."""
