"""One active request in a row of the batch. Mutable, and private to the loop."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.core.types import FinishReason, Generation, Request
from engine.proposers.interface import Context, Shape
from engine.record.recorder import Recorder
from engine.sampling.rng import Randomness
from engine.sampling.stopping import StopRule, TruncatedOutcome


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """The place that a request takes in a run of the loop: step k of the request is the run's round `round + k`.

    `loop` is the name of the run's first request. Names are unique within an arm, so requests of an arm were decoded
    in one batch exactly if they have the same `loop`.
    """

    loop: str
    row: int
    round: int

    def facts(self) -> dict[str, Any]:
        """The place as facts of a trace's header."""
        return asdict(self)


@dataclass(slots=True)
class RowState:
    """The state of one row's request."""

    row: int
    request: Request
    randomness: Randomness
    stops: StopRule
    recorder: Recorder | None
    history: list[int]
    fresh_numbers: bool = False
    """Each step has random numbers of its own (`engine.verify.interface.VerifierFacts`)."""
    step: int = 0
    reason: FinishReason | None = None
    began: float = field(default_factory=time.perf_counter)

    @property
    def generated(self) -> list[int]:
        """Tokens generated so far."""
        return self.history[len(self.request.prompt) :]

    @property
    def numbers(self) -> Randomness:
        """The random numbers of the next step."""
        return self.randomness.of_step(len(self.history)) if self.fresh_numbers else self.randomness

    def context(self, shape: Shape, gamma: int, capacity: int) -> Context:
        """The proposer's view of the row.

        A step always emits one token beside the accepted ones, so nodes deeper than the remaining length minus one
        could never be emitted.
        """
        depth = max(0, self.request.sampling.max_new_tokens - len(self.generated) - 1)
        room = max(0, capacity - len(self.history))
        budget = min(gamma, room, depth if shape == "chain" or not depth else gamma)
        return Context(self.row, self.request, self.history, budget, self.numbers, depth, room)

    def commit(self, cut: TruncatedOutcome) -> None:
        """Append the emitted tokens."""
        self.history.extend(each.token for each in cut.verdict.emitted)
        self.step += 1
        self.reason = cut.reason

    def generation(self) -> Generation:
        """The finished request, with an empty trace."""
        assert self.reason is not None
        tokens = tuple(self.generated)
        return Generation(
            request=self.request,
            tokens=tokens,
            finish_reason=self.reason,
            trace=b"",
            text=self.stops.text(tokens, self.reason),
            latency_us=round((time.perf_counter() - self.began) * 1e6),
        )
