"""A token drawn one way and a q told another, for faults of drafting.

Knows nothing about where the logits come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.types import DraftRule
from engine.decode.seams import EngineParts
from engine.faults.chain_walk import Origin
from engine.faults.interface import SAMPLED_SCENARIO, Fault, Scenario, Suits
from engine.sampling.draw import DraftContext, Draw, DrawRule

Row = NDArray[np.floating[Any]]
DRAWN = Suits(shape="chain")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a draw looks at."""

    logits: Row
    context: DraftContext


def as_seen(seen: Seen) -> Seen:
    """Nothing changed."""
    return seen


def split_draw(draw: DrawRule, token_of: Callable[[Seen], Seen], q_of: Callable[[Seen], Seen]) -> DrawRule:
    """A draw whose token comes from one view of the draft's row and whose q from another.

    Deterministic draws stay as they are.
    """

    def split(rule: DraftRule, logits: Row, context: DraftContext) -> Draw:
        told = q_of(Seen(logits, context))
        drawn = draw(rule, told.logits, told.context)
        if drawn.q is None:
            return drawn
        other = token_of(Seen(logits, context))
        return replace(drawn, token=draw(rule, other.logits, other.context).token)

    return split


def draw_fault(
    name: str,
    origin: Origin,
    token_of: Callable[[Seen], Seen] = as_seen,
    q_of: Callable[[Seen], Seen] = as_seen,
    scenario: Scenario = SAMPLED_SCENARIO,
) -> Fault:
    """A fault of every draw of a draft."""

    def apply(parts: EngineParts) -> EngineParts:
        return replace(parts, draw=split_draw(parts.draw, token_of, q_of))

    return Fault(name, origin.breaks, origin.upstream, origin.seen_from, ("draw",), apply, DRAWN, scenario)
