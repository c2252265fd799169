"""One row's chain while it is being drafted, how its tokens are drawn, and how a draft's own cache reads the prompt.

Shared by all proposers that draft a chain token by token from logits.

"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.types import DraftRule, Proposal, QKind, Tree
from engine.models.interface import SlotCache, TargetModel, WantedOutputs, chain_placement
from engine.proposers.confidence import EndRule, unsure
from engine.proposers.interface import Context, ProposerParts
from engine.sampling.draw import Draw, DrawRule


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """The draw rule of a proposer's tokens, and the confidence below which drafting stops."""

    rule: DraftRule
    draw: DrawRule
    eos_ids: tuple[int, ...]
    stop_below: float
    unsure: EndRule = unsure

    @classmethod
    def of(cls, parts: ProposerParts, stop_below: float) -> DrawSettings:
        """As the parts say."""
        return cls(parts.rule, parts.draw, parts.eos_ids, stop_below, parts.unsure)


@dataclass(slots=True)
class ChainDraft:
    """Draws of one row in one step. Mutable, and private to a proposer's `propose`."""

    context: Context
    draws: list[Draw] = field(default_factory=list)
    stopped: bool = False

    @property
    def unread(self) -> bool:
        """More tokens are wanted."""
        return not self.stopped and len(self.draws) < self.context.budget

    @property
    def history(self) -> list[int]:
        """Committed and drafted tokens."""
        return [*self.context.history, *(draw.token for draw in self.draws)]

    def extend(self, logits: NDArray[np.floating[Any]], how: DrawSettings) -> None:
        """Draw the next token from its row of logits [V], or stop before it."""
        context = self.context.drawing(self.history, how.eos_ids)
        self.stopped = how.unsure(how.stop_below, logits, context)
        if not self.stopped:
            self.draws.append(how.draw(how.rule, logits, context))

    def proposal(self) -> Proposal:
        """The drawn tokens, with their q rows if there are any."""
        return drawn_proposal(Tree.chain(tuple(draw.token for draw in self.draws)), self.draws)


def drawn_proposal(tree: Tree, draws: Sequence[Draw]) -> Proposal:
    """A tree of drawn tokens, with their q rows if there are any."""
    if not draws:
        return Proposal()
    if draws[0].q is None:
        return Proposal(tree, QKind.ONE_HOT)
    q = np.stack([draw.q for draw in draws if draw.q is not None])
    return Proposal(tree, QKind.FULL, q, np.array([draw.uniform for draw in draws]))


def read_prompt(model: TargetModel, cache: SlotCache, context: Context) -> int:
    """Read the prompt but its last token, which drafting feeds; how many tokens were read, 0 if they do not fit."""
    prompt = list(context.history[:-1])
    if not prompt or len(prompt) >= cache.capacity:
        return 0
    placement = chain_placement([prompt], [0], cache.trash, first_row=context.row)
    model.forward(cache, placement, WantedOutputs(logits=False))
    return len(prompt)


def within(cache: SlotCache, context: Context) -> Context:
    """The context with a budget that the cache has columns for."""
    return limited(context, cache.capacity - len(context.history))


def limited(context: Context, room: int) -> Context:
    """The context with a budget of at most `room` tokens; none where that is negative."""
    return replace(context, budget=max(0, min(context.budget, room)))
