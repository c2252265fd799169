"""The replaceable parts of an engine, each the real thing unless something else is asked for.

The seam for faults (`engine.faults`): the loop and the backend build what they run from
these, and know nothing about what stands in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Request, SamplingParams, StepRecord, Tree
from engine.models.interface import SlotCache, TargetModel
from engine.models.placement import keep_path
from engine.proposers.interface import Proposer
from engine.sampling.draw import DrawRule, SiblingRule, draw, draw_siblings
from engine.sampling.rng import Randomness
from engine.sampling.stopping import Decode, StopRule
from engine.sampling.target_rows import TargetRows
from engine.verify.interface import Verifier

NumbersOf = Callable[[int, int], Randomness]
"""(seed, stream) -> the random numbers of one request."""
RowsOf = Callable[[NDArray[np.floating[Any]], Tree, Sequence[int], int, SamplingParams, tuple[int, ...]], TargetRows]
"""The arguments of `TargetRows` -> the target's rows of one step."""
StopsOf = Callable[[SamplingParams, tuple[int, ...], Decode], StopRule]
"""The arguments of `StopRule` -> the ends of one request."""
KeepPath = Callable[[SlotCache, int, int, Sequence[int]], None]
"""(cache, row, committed tokens before the step, accepted nodes): what `engine.models.placement.keep_path` does."""
Tell = Callable[[Request, StepRecord], StepRecord]
"""What happened in a step of a request -> what is written down."""
WrapModel = Callable[[TargetModel], TargetModel]
WrapProposer = Callable[[Proposer], Proposer]


def as_it_is(part: Any) -> Any:
    """The part itself."""
    return part


def as_it_was(_request: Request, record: StepRecord) -> StepRecord:
    """All that happened, and nothing else."""
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """What the loop makes for every request and every step."""

    numbers: NumbersOf = Randomness
    rows: RowsOf = TargetRows
    stops: StopsOf = StopRule
    keep: KeepPath = keep_path
    record: Tell = as_it_was


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts(LoopParts):
    """What a backend builds an arm from.

    `target` wraps the model whose rows are verified and whose hidden states heads read, not the one that a proposer
    drafts with; `draft` wraps every draft model; `proposer` the built proposer. They wrap anew for each call of
    `generate`, so what a wrapper remembers is of one batch of requests.
    """

    verifier: Verifier
    draw: DrawRule = draw
    draw_siblings: SiblingRule = draw_siblings
    target: WrapModel = as_it_is
    draft: WrapModel = as_it_is
    proposer: WrapProposer = as_it_is
