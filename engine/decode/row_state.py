"""One active request in a row of the batch. Mutable, and private to the loop."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.core.errors import NoTokenLeft
from engine.core.types import FinishReason, Generation, Mask, Request
from engine.decode.arrivals import Withdrawal
from engine.decode.batch_facts import BatchPlace
from engine.decode.call_reader import CallReader
from engine.proposers.interface import Context, Shape
from engine.record.recorder import Recorder
from engine.record.trace import STOP_BEGINS, TraceHeader
from engine.sampling.rng import Randomness
from engine.sampling.stopping import StopRule, TruncatedOutcome
from engine.sampling.transforms import MaskOf
from engine.stream.text_stream import TextStream


@dataclass(frozen=True, slots=True)
class DraftMasks:
    """A grammar's masks as a draft gets them; where the grammar gives up, every token is allowed.

    One call drafts for the whole batch, so no request's grammar may end it. The target's own mask ends that request.
    """

    masks: MaskOf
    vocabulary: int

    def __call__(self, generated: Sequence[int]) -> Mask:
        """[V] the tokens that may follow `generated`."""
        try:
            mask = self.masks(generated)
        except NoTokenLeft:
            return np.ones(self.vocabulary, np.bool_)
        return mask if mask.any() else np.ones(self.vocabulary, np.bool_)


@dataclass(slots=True)
class RowState:
    """The state of one row's request."""

    place: BatchPlace
    request: Request
    randomness: Randomness
    stops: StopRule
    recorder: Recorder | None
    history: list[int]
    stream: TextStream | None = None
    """The text as it leaves, in an arm that records it."""
    masks: MaskOf | None = None
    """The masks of the request's grammar."""
    draft_masks: MaskOf | None = None
    failure: Withdrawal | None = None
    """Why the request ends without an answer: its grammar gave up."""
    fresh_numbers: bool = False
    """Each step has random numbers of its own (`engine.verify.interface.VerifierFacts`)."""
    step: int = 0
    reason: FinishReason | None = None
    kind: int = 0
    """Number of the request's sampling parameters in this run of the loop (`UnlikeRounds.kind`)."""
    calls: CallReader | None = None
    """Reads the tool calls out of the committed text; None where nothing looks for them."""
    began: float = field(default_factory=time.perf_counter)

    @property
    def row(self) -> int:
        """The row of the batch."""
        return self.place.row

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
        return Context(self.row, self.request, self.history, budget, self.numbers, depth, room, masks=self.draft_masks)

    def commit(self, cut: TruncatedOutcome) -> None:
        """Append the emitted tokens."""
        self.history.extend(item.token for item in cut.verdict.emitted)
        if self.calls is not None:
            self.calls.step(self.generated, len(cut.verdict.emitted))
        self.step += 1
        self.reason = cut.reason

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add facts to the header of the request's record, if it has one."""
        if self.recorder is not None:
            header = self.recorder.header
            self.recorder.header = replace(header, facts={**header.facts, **facts})

    def stop_facts(self) -> dict[str, Any]:
        """Where the stop string begins that ended the request; empty without one."""
        assert self.reason is not None
        begins = self.stops.stop_begins(self.generated, self.reason)
        return {} if begins is None else {STOP_BEGINS: begins}

    def call_facts(self, header: TraceHeader) -> dict[str, Any]:
        """The calls of the finished request beside what the header of its record says about its tools."""
        if self.calls is None:
            return {}
        assert self.reason is not None
        text = self.stops.text(self.generated, self.reason)
        return {"tools": {**header.facts["tools"], **self.calls.facts(text, len(self.generated))}}

    def generation(self) -> Generation:
        """The finished request, with an empty trace."""
        assert self.reason is not None
        tokens = tuple(self.generated)
        return Generation(
            request=self.request,
            tokens=tokens,
            finish_reason=self.reason,
            trace=b"",
            text=self.stops.text(tokens, self.reason) if self.stream is None else self.stream.text,
            latency_us=round((time.perf_counter() - self.began) * 1e6),
        )
