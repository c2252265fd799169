"""EAGLE heads: they continue the target's hidden states, token by token or as a tree.

EAGLE (Li et al. 2401.15077) reads the last hidden state. It drafts a chain, or with the option `widths` a tree of that
shape whose siblings are drawn without replacement. EAGLE-2 (Li et al. 2406.16858) grows a tree where a head of EAGLE-1
or EAGLE-3 is sure. EAGLE-3 (Li et al. 2503.01840) fuses three hidden states of the target and then feeds on its own
output: a chain, or with the option `dynamic` the tree of EAGLE-2. Its head may know a part of the vocabulary only; q is
0 elsewhere.

Chains and trees drafted by any head that continues hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.options import numbers
from engine.core.trees import ROOT
from engine.core.types import Floats, Proposal, QKind, Tree
from engine.models.interface import to_numpy
from engine.proposers.draft_model.chain_draft import ChainDraft, DrawSettings, limited
from engine.proposers.draft_model.specinfer import widths_shape
from engine.proposers.draft_model.static_trees import StaticTreeProposer, TreeGrowth
from engine.proposers.draft_model.tree_draft import TreeLevel
from engine.proposers.interface import Context, Proposer, ProposerFacts, ProposerParts, SteadyDrafts
from engine.proposers.options import read
from engine.proposers.trained.feature_head import FeatureHead, FeatureReader, feature_head
from engine.sampling.draw import Siblings
from engine.sampling.transforms import log_sum_exp


class FeatureChain(FeatureReader):
    """One token after the other, for all rows at once."""

    def __init__(self, head: FeatureHead, parts: ProposerParts, stop_below: float, facts: ProposerFacts) -> None:
        super().__init__(head, parts.rows, parts.capacity)
        self._how = DrawSettings.of(parts, stop_below)
        self.facts = facts

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Chains of up to the rows' budgets; none before the first state, or beyond the head's context."""
        drafted = [ChainDraft(limited(context, self.room(context))) for context in contexts]
        while waiting := {item.context.row: item for item in drafted if item.unread}:
            for row, logits in self._round(waiting).items():
                waiting[row].extend(to_numpy(logits), self._how)
        return [item.proposal() for item in drafted]

    def _round(self, waiting: Mapping[int, ChainDraft]) -> Mapping[int, torch.Tensor]:
        """[V] logits after every row's newest token; all rows have drafted equally many."""
        if not any(item.draws for item in waiting.values()):
            return self.roots([item.context for item in waiting.values()])
        levels = {
            row: TreeLevel(
                committed=len(item.context.history),
                tree=Tree.chain(tuple(drawn.token for drawn in item.draws)),
                first=len(item.draws) - 1,
            )
            for row, item in waiting.items()
        }
        return {row: logits[0] for row, logits in self.read(levels).items()}


@dataclass(frozen=True, slots=True)
class DynamicTreeSize:
    """The limits of a dynamic tree: `top_k` nodes are expanded at each of `depth` levels, each `top_k` times."""

    top_k: int
    depth: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A token that may be drafted: its parent's number among the candidates, and log q of its whole path."""

    token: int
    parent: int
    log_q: float


@dataclass(slots=True)
class _Growing:
    """One row's candidates, level after level, and which of them were read."""

    context: Context
    candidates: list[_Candidate] = field(default_factory=list)
    level: list[int] = field(default_factory=list)
    """The candidates of the newest level."""
    frontier: list[int] = field(default_factory=list)
    """Those of them that are read next."""
    read: list[int] = field(default_factory=list)
    """All that were read or are read next, in order."""

    def path(self, candidate: int) -> list[int]:
        """The tokens from the root's child down to a candidate; none for the root."""
        tokens: list[int] = []
        while candidate != ROOT:
            tokens.append(self.candidates[candidate].token)
            candidate = self.candidates[candidate].parent
        return tokens[::-1]

    def best(self, among: Sequence[int], count: int) -> list[int]:
        """The most likely of some candidates, the earlier ones first among equals, in ascending order."""
        return sorted(sorted(among, key=lambda i: (-self.candidates[i].log_q, i))[:count])

    def expand(self, node: int, log_q: Floats, count: int) -> None:
        """Add the `count` most likely children of a candidate, or of the root."""
        before = 0.0 if node == ROOT else self.candidates[node].log_q
        for token in np.argsort(-log_q, kind="stable")[:count]:
            if np.isfinite(log_q[token]):
                self.level.append(len(self.candidates))
                self.candidates.append(_Candidate(int(token), node, before + float(log_q[token])))

    def tree(self, nodes: Sequence[int]) -> Tree:
        """Of candidates that contain each one's parent, parents first."""
        place = {ROOT: ROOT} | {node: i for i, node in enumerate(nodes)}
        kept = [self.candidates[node] for node in nodes]
        return Tree(tuple(item.token for item in kept), tuple(place[item.parent] for item in kept))


class DynamicTree(FeatureReader):
    """EAGLE-2's tree (Li et al. 2406.16858): the likeliest nodes are expanded, and the likeliest nodes overall are
    drafted.

    A node's worth is the product of q along its path. Nothing is drawn, so each token is a function of its prefix.
    """

    def __init__(self, head: FeatureHead, parts: ProposerParts, reach: DynamicTreeSize, facts: ProposerFacts) -> None:
        # columns for all nodes that may be expanded
        super().__init__(head, parts.rows, parts.capacity + reach.top_k * (reach.depth - 1))
        self._reach, self._eos_ids, self.facts = reach, parts.eos_ids, facts

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """Trees of up to the rows' budgets; none before the first state, or beyond the head's context."""
        growing = [_Growing(limited(context, self.room(context))) for context in contexts]
        for depth in range(1, self._reach.depth + 1):
            rows = {item.context.row: item for item in growing if self._wants(item, depth)}
            if not rows:
                break
            logits = self._logits(rows, depth)
            for row, item in rows.items():
                item.level = []
                for node, scores in zip(item.frontier or [ROOT], logits[row], strict=True):
                    item.expand(node, self._log_q(item, node, scores), self._reach.top_k)
        return [self._proposal(item) for item in growing]

    def _wants(self, row: _Growing, depth: int) -> bool:
        """True if a level is grown at this depth; selects the nodes to read for it."""
        context = row.context
        if not context.budget or depth > context.depth:
            return False
        if depth > 1:
            row.frontier = row.best(row.level, min(self._reach.top_k, self.room(context) - len(row.read)))
            row.read += row.frontier
        return depth == 1 or bool(row.frontier)

    def _logits(self, rows: Mapping[int, _Growing], depth: int) -> Mapping[int, NDArray[np.floating[Any]]]:
        """[n, V] logits after the n nodes of each row's frontier, or after the root."""
        if depth == 1:
            mapping = self.roots([row.context for row in rows.values()])
            return {row: to_numpy(logits[None]) for row, logits in mapping.items()}
        levels = {
            row: TreeLevel(len(item.context.history), item.tree(item.read), len(item.read) - len(item.frontier))
            for row, item in rows.items()
        }
        return {row: to_numpy(logits) for row, logits in self.read(levels).items()}

    def _log_q(self, row: _Growing, node: int, logits: NDArray[np.floating[Any]]) -> Floats:
        """[V] of the scores at temperature 1: masks and penalties count, as they do for the target."""
        drafting = row.context.drawing([*row.context.history, *row.path(node)], self._eos_ids)
        scores = drafting.row(logits).scores
        return np.asarray(scores - log_sum_exp(scores[None]))

    def _proposal(self, row: _Growing) -> Proposal:
        """The likeliest candidates; a parent is at least as likely as its child, and comes before it."""
        kept = row.best(range(len(row.candidates)), row.context.budget)
        return Proposal(row.tree(kept), QKind.ONE_HOT) if kept else Proposal()


CHAIN: Final = (1,)


class EagleProposer(FeatureChain):
    """Drafts with an EAGLE-1 head."""

    @classmethod
    def build(cls, parts: ProposerParts) -> Proposer:
        """From a head and the options `widths` and `stop_below`."""
        options = read("eagle", parts.options)
        head = feature_head("eagle", parts, ("eagle",))
        widths = tuple(int(width) for width in numbers(options["widths"]))
        facts = ProposerFacts(
            "eagle",
            shape="chain" if widths == CHAIN else "tree",
            hidden=head.layers,
            options=options,
            # a tree's size depends on what is left of it
            steady=SteadyDrafts(head.decoder.context) if widths == CHAIN and not options["stop_below"] else None,
        )
        if widths == CHAIN:
            return cls(head, parts, options["stop_below"], facts)
        reader = FeatureReader(head, parts.rows, parts.capacity)
        shape = TreeGrowth(Siblings.WITHOUT_REPLACEMENT, lambda size, depth: widths_shape(widths[:depth], size))
        return StaticTreeProposer(parts, [reader], shape, facts)


class Eagle2Proposer(DynamicTree):
    """Drafts dynamic trees."""

    @classmethod
    def build(cls, parts: ProposerParts) -> Eagle2Proposer:
        """From a head and the options `top_k` and `depth`."""
        options = read("eagle2", parts.options)
        head = feature_head("eagle2", parts, ("eagle", "eagle3"))
        return cls.over("eagle2", head, parts, options)

    @classmethod
    def over(cls, kind: str, head: FeatureHead, parts: ProposerParts, options: dict[str, Any]) -> Eagle2Proposer:
        """Of a proposer that goes by the name `kind`."""
        reach = DynamicTreeSize(options["top_k"], options["depth"])
        facts = ProposerFacts(
            kind,
            shape="tree",
            q_kind=QKind.ONE_HOT,
            can_couple=False,
            hidden=head.layers,
            options=options,
            measured=False,
        )
        return cls(head, parts, reach, facts)


class Eagle3Proposer(FeatureChain):
    """Drafts with an EAGLE-3 head."""

    @classmethod
    def build(cls, parts: ProposerParts) -> Proposer:
        """From a head and the options `dynamic`, with `top_k` and `depth`, and `stop_below`, for chains."""
        options = read("eagle3", parts.options)
        head = feature_head("eagle3", parts, ("eagle3",))
        if options["dynamic"]:
            return Eagle2Proposer.over("eagle3", head, parts, options)
        facts = ProposerFacts(
            "eagle3",
            hidden=head.layers,
            options=options,
            steady=None if options["stop_below"] else SteadyDrafts(head.decoder.context),
        )
        return cls(head, parts, options["stop_below"], facts)
