"""One row's chain while it is being drafted, how its tokens are drawn, and how a draft model reads in its own cache.

Shared by all proposers that draft a chain token by token from logits.

"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.core.types import DraftRule, Proposal, QKind, Tree
from engine.models.interface import TargetModel, WantedOutputs, chain_placement
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


def drafted_chains(contexts: Sequence[Context], advance: Callable[[Mapping[int, ChainDraft]], None]) -> list[Proposal]:
    """The chains of all rows; `advance` gives each row that wants more tokens at least one, or stops it."""
    drafts = [ChainDraft(context) for context in contexts]
    while waiting := {draft.context.row: draft for draft in drafts if draft.unread}:
        advance(waiting)
    return [draft.proposal() for draft in drafts]


class CachedDrafter:
    """Start, reading and end of a drafter that has a model with a cache of its own."""

    def __init__(self, model: TargetModel, rows: int, capacity: int) -> None:
        self._model = model
        self._cache = model.new_cache(rows, min(capacity, model.context))
        self._valid = [0] * rows

    def start(self, context: Context) -> None:
        """Read the prompt but its last token, which drafting feeds, if it fits."""
        prompt = list(context.history[:-1])
        self._valid[context.row] = 0
        if 0 < len(prompt) < self._cache.capacity:
            placement = chain_placement([prompt], [0], self._cache.trash, first_row=context.row)
            self._model.forward(self._cache, placement, WantedOutputs(logits=False))
            self._valid[context.row] = len(prompt)

    def room(self, context: Context) -> int:
        """The number of tokens that still fit behind the row's committed ones."""
        return max(0, self._cache.capacity - len(context.history))

    def read_on(self, histories: Mapping[int, Sequence[int]]) -> Mapping[int, Tensor]:
        """[n, V] logits after the n tokens of each row's history that have not been read yet."""
        tokens = [list(histories[row][valid:]) if row in histories else [] for row, valid in enumerate(self._valid)]
        placement = chain_placement(tokens, list(self._valid), self._cache.trash)
        logits = self._model.forward(self._cache, placement, WantedOutputs()).logits
        assert logits is not None
        for row, history in histories.items():
            self._valid[row] = len(history)
        return {row: logits[row, : len(tokens[row])] for row in histories}

    def finish(self, row: int) -> None:
        """Forget the row."""
        self._valid[row] = 0


def limited(context: Context, room: int) -> Context:
    """The context with a budget of at most `room` tokens; none where that is negative."""
    return replace(context, budget=max(0, min(context.budget, room)))
