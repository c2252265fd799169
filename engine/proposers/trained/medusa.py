"""Medusa (Cai et al. 2401.10774): several heads look ahead from one hidden state of the target.

Head i reads the last hidden state h_t, after the final norm, and predicts token t + 2 + i; the output matrix predicted
token t + 1. After a step the newest committed token has not been read yet, so h_t is that of the token before it, the
newest one is t + 1, and head 0 gives the first drafted token. No head knows what the others chose. Drafts are verified
without loss; `engine.verify.lossy` holds the paper's typical acceptance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from engine.core.errors import InvalidRequest
from engine.core.options import numbers
from engine.core.trees import ROOT
from engine.core.types import DraftRule, Proposal, QKind, Tree
from engine.models.interface import to_numpy
from engine.models.numerics.interface import Affine
from engine.proposers.draft_model.chain_draft import ChainDraft, DrawSettings
from engine.proposers.draft_model.specinfer import widths_shape
from engine.proposers.interface import Context, ProposerFacts, ProposerParts, SteadyDrafts
from engine.proposers.options import NO_TREE, read
from engine.proposers.trained.fitted_head import FittedHead, LastStateProposer, fitted_head
from engine.sampling.draw import Draw, Siblings, SiblingSpec

OUTSIDE: Final = -1e30
"""Logit of a token that a reduced vocabulary lacks: never drawn, unless a request masks all others."""

Rows = NDArray[np.floating[Any]]


class MedusaHeads:
    """The heads' arithmetic, in the target's dtype and numerics mode."""

    def __init__(self, side: FittedHead) -> None:
        settings, matrix = side.head.settings, side.model.numerics.matrix
        self.count: int = settings["heads"]
        self.vocabulary: int = settings["vocabulary"]
        self._scale: float = settings["logit_scale"]
        self._blocks = [
            [matrix(_affine(side, f"block.{head}.{layer}")) for layer in range(settings["layers"])]
            for head in range(self.count)
        ]
        heads = [f"head.{head}.weight" for head in range(self.count)]
        self._outputs = side.prepared(heads, lambda name: matrix(_affine(side, name.removesuffix(".weight"))))
        self._tokens = side.head.tensors.get("token_map")

    def logits(self, states: Tensor, heads: int) -> Tensor:
        """[N, heads, V] of the first heads for hidden states [N, H]."""
        return torch.stack([self._head(states, head) for head in range(heads)], 1)

    def _head(self, x: Tensor, head: int) -> Tensor:
        for layer in self._blocks[head]:
            x = x + F.silu(layer(x))
        logits = self._outputs[head](x) * self._scale
        if self._tokens is None:
            return logits
        return logits.new_full((len(x), self.vocabulary), OUTSIDE).index_copy_(1, self._tokens, logits)


def _affine(side: FittedHead, name: str) -> Affine:
    bias = f"{name}.bias"
    return Affine(side.tensor(f"{name}.weight"), side.tensor(bias) if bias in side.head.tensors else None)


class MedusaProposer(LastStateProposer):
    """Drafts chains or trees with Medusa heads."""

    def __init__(self, parts: ProposerParts, side: FittedHead, options: Mapping[str, Any]) -> None:
        self._heads = MedusaHeads(side)
        self._widths = _widths(options["tree"], self._heads.count)
        soft = options["draw"] == "soft"
        rule = parts.rule if soft else DraftRule.GREEDY
        self._how = DrawSettings(rule, parts.draw, parts.eos_ids, stop_below=0.0)
        self._draw_siblings = parts.draw_siblings
        layer = side.model.config.layers
        super().__init__(layer)
        self.facts = ProposerFacts(
            "medusa",
            shape="tree" if self._widths else "chain",
            q_kind=QKind.FULL if soft else QKind.ONE_HOT,
            can_couple=soft,
            hidden=(layer,),
            options=options,
            steady=None if self._widths else SteadyDrafts(side.model.context, self._heads.count),
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> MedusaProposer:
        """From a Medusa head and the options `draw` and `tree`.

        Raises:
            InvalidRequest: an option that is not taken, a soft tree, more levels than heads, or no head.
            ModelError: a head that does not fit the target.
        """
        options = read("medusa", parts.options)
        return cls(parts, fitted_head("medusa", parts), options)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """One draft per row, none where nothing was read yet."""
        ready = [context.row for context in contexts if context.budget > 0 and self.knows(context.row)]
        if not ready:
            return [Proposal() for _ in contexts]
        most = max(min(context.budget, context.depth) for context in contexts)
        heads = min(self._heads.count, len(self._widths) or most, most)
        rows = to_numpy(self._heads.logits(self.stacked(ready), heads))
        result = dict(zip(ready, rows, strict=True))
        return [
            self._draft(context, result[context.row]) if context.row in result else Proposal() for context in contexts
        ]

    def _draft(self, context: Context, rows: Rows) -> Proposal:
        return self._tree(context, rows) if self._widths else self._chain(context, rows)

    def _chain(self, context: Context, rows: Rows) -> Proposal:
        draft = ChainDraft(context)
        for logits in rows[: context.budget]:
            draft.extend(logits, self._how)
        return draft.proposal()

    def _tree(self, context: Context, rows: Rows) -> Proposal:
        """The most likely tokens of each level's head under every node of the level before."""
        shape = widths_shape(self._widths[: min(context.depth, len(rows))], context.budget)
        below = shape.children
        tokens: list[int] = []
        parents: list[int] = []
        waiting = deque([_OpenNode(ROOT, ROOT, ())])
        while waiting:
            node = waiting.popleft()
            places = below[node.place + 1]
            draws = self._children(context, node.path, rows[len(node.path)]) if places else []
            # fewer than the shape has, if fewer tokens are allowed
            for place, drawn in zip(places, draws, strict=False):
                waiting.append(_OpenNode(place, len(tokens), (*node.path, drawn.token)))
                tokens.append(drawn.token)
                parents.append(node.number)
        return Proposal(Tree(tuple(tokens), tuple(parents)), QKind.ONE_HOT) if tokens else Proposal()

    def _children(self, context: Context, path: Sequence[int], logits: Rows) -> list[Draw]:
        drafting = context.drawing([*context.history, *path], self._how.eos_ids)
        siblings = SiblingSpec(self._widths[len(path)], Siblings.TOP)
        return self._draw_siblings(DraftRule.GREEDY, siblings, logits, drafting)


@dataclass(frozen=True, slots=True)
class _OpenNode:
    """A node whose children are to come: its places in the shape and in the proposal, the tokens down to it."""

    place: int
    number: int
    path: tuple[int, ...]


def _widths(text: str, heads: int) -> tuple[int, ...]:
    """Widths of a tree's levels, none for a chain; raises InvalidRequest: a level is empty, or there are too many."""
    if text == NO_TREE:
        return ()
    widths = tuple(int(width) for width in numbers(text))
    if min(widths) < 1:
        raise InvalidRequest(f"proposer medusa: option tree must have widths of at least 1, not {text!r}")
    if len(widths) > heads:
        raise InvalidRequest(f"proposer medusa: option tree has {len(widths)} levels, but the head has {heads} heads")
    return widths
