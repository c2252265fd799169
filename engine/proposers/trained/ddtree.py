"""DDTree: the likeliest prefixes by the marginals of one DFlash pass, as a tree.

A prefix's score is the product of its tokens' probabilities at their positions. The
tree of the best prefixes is a function of the committed tokens, so q is one-hot.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.trees import ROOT
from engine.core.types import Floats, Proposal, QKind, Tree
from engine.models.interface import to_numpy
from engine.proposers.interface import Context, ProposerFacts, ProposerParts
from engine.proposers.options import read
from engine.proposers.trained.dflash import BlockDrafter, block_head
from engine.proposers.trained.fitted_head import FittedHead
from engine.sampling.transforms import softmax, transform


class DDTreeProposer(BlockDrafter):
    """Drafts trees of up to the budget's nodes, as deep as a block's masks."""

    def __init__(self, parts: ProposerParts, fitted: FittedHead) -> None:
        super().__init__(parts, fitted)
        self._eos_ids = parts.eos_ids
        self.facts = ProposerFacts(
            "ddtree", shape="tree", q_kind=QKind.ONE_HOT, can_couple=False, hidden=self.hidden, measured=False
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> DDTreeProposer:
        """From a head; takes no options."""
        read("ddtree", parts.options)
        return cls(parts, block_head("ddtree", parts))

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """One tree per row with a budget."""
        drafting = [context for context in contexts if context.budget and self._depth(context)]
        result = self.logits(drafting) if drafting else {}
        trees = {item.row: self._tree(item, to_numpy(result[item.row])) for item in drafting}
        return [trees.get(context.row, Proposal()) for context in contexts]

    def _depth(self, context: Context) -> int:
        return min(context.depth, self.room(context))

    def _tree(self, context: Context, logits: NDArray[np.floating[Any]]) -> Proposal:
        rows = logits[: self._depth(context)]
        marginals = np.stack([self._marginal(context, row, first=not at) for at, row in enumerate(rows)])
        tree = best_prefixes(marginals, context.budget)
        return Proposal(tree, QKind.ONE_HOT) if len(tree) else Proposal()

    def _marginal(self, context: Context, logits: NDArray[np.floating[Any]], *, first: bool) -> Floats:
        """[V] of one position by the request's transforms; at temperature 0 that of the scores at temperature 1."""
        request = context.request
        # the masks of later positions depend on tokens that a marginal does not know
        masks, start = context.masks, len(request.prompt)
        allowed = None if masks is None else masks(context.history[start:]) if first else np.ones(len(logits), np.bool_)
        row = transform(logits, list(context.history), start, request.sampling, self._eos_ids, allowed)
        return softmax(row.scores) if request.sampling.greedy else row.p


def best_prefixes(marginals: Floats, budget: int) -> Tree:
    """The at most `budget` prefixes of the largest products, best first; a prefix comes after its own prefixes.

    `marginals` [D, V] are the probabilities by position.
    """
    ranked = np.argsort(-marginals, axis=1, kind="stable")[:, :budget]
    with np.errstate(divide="ignore"):
        logs = np.log(np.take_along_axis(marginals, ranked, 1))
    tokens: list[int] = []
    parents: list[int] = []
    # of a prefix: minus its log-probability, its parent's node and log-probability, its depth, its last token's rank
    heap = [(-float(logs[0, 0]), ROOT, 0.0, 0, 0)]
    while heap and len(tokens) < budget:
        cost, parent, before, depth, rank = heapq.heappop(heap)
        if not np.isfinite(cost):
            break
        node = len(tokens)
        tokens.append(int(ranked[depth, rank]))
        parents.append(parent)
        if rank + 1 < ranked.shape[1]:
            heapq.heappush(heap, (-before - float(logs[depth, rank + 1]), parent, before, depth, rank + 1))
        if depth + 1 < len(marginals):
            heapq.heappush(heap, (cost - float(logs[depth + 1, 0]), node, -cost, depth + 1, 0))
    return Tree(tuple(tokens), tuple(parents))
