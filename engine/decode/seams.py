"""The replaceable parts of an engine; the defaults are the real implementations.

Faults (`engine.faults`) replace these parts; the loop and the backend do not distinguish a replaced part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Request, SamplingParams, StepRecord, Tree
from engine.decode.call_reader import CallReader
from engine.models.interface import SlotCache, TargetModel, keep_path
from engine.proposers.interface import Proposer
from engine.record.tool_calls import ResponseTemplate
from engine.sampling.draw import DrawRule, SiblingRule, draw, draw_siblings
from engine.sampling.rng import Randomness
from engine.sampling.stopping import Decode, StopRule
from engine.sampling.transforms import MaskOf, TargetRows
from engine.stream.text_stream import StreamRules, TextStream
from engine.verify.interface import Verifier

NumbersOf = Callable[[int, int], Randomness]
"""(seed, stream) -> the random numbers of one request."""
RowsOf = Callable[
    [NDArray[np.floating[Any]], Tree, Sequence[int], int, SamplingParams, tuple[int, ...], MaskOf | None], TargetRows
]
"""The arguments of `TargetRows` -> the target's rows of one step."""
StopsOf = Callable[[SamplingParams, tuple[int, ...], Decode], StopRule]
"""The arguments of `StopRule` -> the ends of one request."""
StreamOf = Callable[[StreamRules, StopRule], TextStream]
"""The arguments of `TextStream` -> the text of one request."""
KeepPath = Callable[[SlotCache, int, int, Sequence[int]], None]
"""(cache, row, committed tokens before the step, accepted nodes): the signature of `engine.models.interface.keep_path`.
"""
WrapMasks = Callable[[Request, MaskOf], MaskOf]
"""A request and its grammar -> the masks in effect, on drafts and target rows alike."""
Tell = Callable[[Request, StepRecord], StepRecord]
"""A request's step -> the step as it is recorded."""
CallsOf = Callable[[Request, ResponseTemplate, Decode], CallReader]
"""The arguments of `CallReader` -> the reader of one request's tool calls."""
WrapModel = Callable[[TargetModel], TargetModel]


def as_it_is(part: Any) -> Any:
    """The part itself."""
    return part


def unchanged(_request: Request, part: Any) -> Any:
    """The part of a request itself (default)."""
    return part


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """The factories that the loop calls for every request and every step."""

    numbers: NumbersOf = Randomness
    rows: RowsOf = TargetRows
    stops: StopsOf = StopRule
    keep: KeepPath = keep_path
    record: Tell = unchanged
    calls: CallsOf = CallReader
    streams: StreamOf = TextStream
    masks: WrapMasks = unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts(LoopParts):
    """The parts from which a backend builds an arm.

    `target` wraps the model whose rows are verified and whose hidden states heads read, not the one that a proposer
    drafts with; `draft` wraps every draft model; `proposer` the built proposer. Each call of `generate` wraps anew, so
    a wrapper's state covers one batch of requests.
    """

    verifier: Verifier
    draw: DrawRule = draw
    draw_siblings: SiblingRule = draw_siblings
    target: WrapModel = as_it_is
    draft: WrapModel = as_it_is
    proposer: Callable[[Proposer], Proposer] = as_it_is
