"""Suffix decoding (Arctic Inference, 2411.04975): propose what most often followed the longest recurring suffix.

The proposer counts the continuations of the longest recurring suffix in the request's own history and, with
`cached_requests`, in the last finished responses. The match's length and the counts' confidence limit the draft. It is
a deterministic function of what was counted, so q is one-hot. The proposer has no weights.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np

from engine.core.trees import ROOT
from engine.core.types import Proposal, QKind, StepOutcome, Tree
from engine.proposers.copying.suffix_tree import Node, SuffixTree
from engine.proposers.interface import Context, ProposerFacts
from engine.proposers.options import read
from engine.proposers.parts import ProposerParts, SharedMemory

_OWN: Final = 0
"""The number of the only text in a request's own tree."""


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """The options, by their names."""

    depth: int
    max_spec_factor: float
    min_token_prob: float
    cached_requests: int
    tree: bool

    @property
    def width(self) -> int:
        """The longest match and the longest draft after it, in tokens."""
        return self.depth + math.floor(self.depth * self.max_spec_factor)


@dataclass(frozen=True, slots=True)
class SuffixDraft:
    """Drafted tokens, and how many of them the counts expect to be accepted."""

    tree: Tree
    score: float


@dataclass(frozen=True, slots=True, order=True)
class _Continuation:
    """A continuation that may be drafted; the likeliest sorts first, among equals the one offered first."""

    order: float
    """Minus the probability of the path to it."""
    parent: int
    rank: int
    token: int = field(compare=False)
    node: Node = field(compare=False)

    @property
    def chance(self) -> float:
        """The probability of the path to it."""
        return -self.order


@dataclass(frozen=True, slots=True)
class _SuffixRow:
    """One active request: the tree of its prompt and output, and the output."""

    tree: SuffixTree
    response: list[int] = field(default_factory=list)


class ResponseCache:
    """The latest responses: first in, first out.

    Args:
        most: how many are kept; 0 keeps none.
        width: longest string that is counted in them, in tokens.
    """

    def __init__(self, most: int, width: int) -> None:
        self._most = most
        self._width = width
        self.reset()

    def reset(self) -> None:
        """Forget all of them."""
        self.tree = SuffixTree(self._width)
        self._added = 0

    def add(self, response: Sequence[int]) -> None:
        """Keep a response, in place of the oldest if there are too many."""
        if not self._most:
            return
        self.tree.grow(self._added, response)
        self.tree.close(self._added)
        self._added += 1
        if len(self.tree.texts) > self._most:
            self.tree.remove(next(iter(self.tree.texts)))

    def fingerprint(self) -> str:
        """SHA-256, in hex, of the responses in their order, which are all that drafts depend on."""
        digest = hashlib.sha256()
        for response in self.tree.texts.values():
            digest.update(np.array([len(response), *response], dtype="<i8").tobytes())
        return digest.hexdigest()


class SuffixProposer:
    """Copies the likeliest continuations of the longest recurring suffix."""

    def __init__(self, settings: SuffixOptions, memory: SharedMemory | None = None) -> None:
        self._settings = settings
        self._rows: dict[int, _SuffixRow] = {}
        fresh = ResponseCache(settings.cached_requests, settings.width)
        self._cache = memory if isinstance(memory, ResponseCache) else fresh
        self.memory: SharedMemory | None = self._cache if settings.cached_requests else None
        self.facts = ProposerFacts(
            "suffix",
            shape="tree" if settings.tree else "chain",
            q_kind=QKind.ONE_HOT,
            can_couple=False,
            state="shared" if settings.cached_requests else "request",
            options=asdict(settings),
            copies=True,
            reads_target=False,
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> SuffixProposer:
        """From its options."""
        return cls(SuffixOptions(**read("suffix", parts.options)), parts.memory)

    def start(self, context: Context) -> None:
        """Count the prompt."""
        self._rows[context.row] = _SuffixRow(SuffixTree(self._settings.width))
        self._rows[context.row].tree.grow(_OWN, context.history)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """A chain or a tree where a suffix recurs, an empty proposal elsewhere."""
        return [self._proposal(context) for context in contexts]

    def _proposal(self, context: Context) -> Proposal:
        best = draft(self._rows[context.row].tree, context, self._settings)
        if self._settings.cached_requests:
            other = draft(self._cache.tree, context, self._settings)
            # ties go to the request's own history, the nearer source
            best = max(best, other, key=lambda item: item.score)
        return Proposal(best.tree, QKind.ONE_HOT) if len(best.tree) else Proposal()

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Count the emitted tokens."""
        row, tokens = self._rows[context.row], [item.token for item in verdict.emitted]
        row.tree.grow(_OWN, tokens)
        row.response.extend(tokens)

    def finish(self, row: int) -> None:
        """Forget the row; its response goes to the cache."""
        self._cache.add(self._rows.pop(row).response)


def draft(tree: SuffixTree, context: Context, settings: SuffixOptions) -> SuffixDraft:
    """Follow the likeliest continuations of the longest suffix of the history that goes on in `tree`.

    At most the budget's tokens, at most `max_spec_factor` for each token of the match, and only paths of at least
    `min_token_prob`. Every parent comes before its children because it is never less likely.
    """
    match = tree.longest(context.history, settings.depth)
    most = min(context.budget, math.floor(match.length * settings.max_spec_factor))
    tokens: list[int] = []
    parents: list[int] = []
    score = 0.0
    waiting = _branches(tree, match, ROOT, 1.0, settings) if most else []
    while waiting and len(tokens) < most:
        branch = heapq.heappop(waiting)
        tokens.append(branch.token)
        parents.append(branch.parent)
        score += branch.chance
        if branch.node.length - match.length < context.depth:
            for other in _branches(tree, branch.node, len(tokens) - 1, branch.chance, settings):
                heapq.heappush(waiting, other)
    return SuffixDraft(Tree(tuple(tokens), tuple(parents)), score)


def _branches(tree: SuffixTree, node: Node, parent: int, chance: float, settings: SuffixOptions) -> list[_Continuation]:
    """The likely enough continuations of a node whose path has probability `chance`; without `tree` only the best."""
    total = tree.followed(node)
    children = list(tree.children(node, max(1, math.floor(settings.min_token_prob / chance * total))).items())
    result = [
        _Continuation(-chance * child.count / total, parent, rank, token, child)
        for rank, (token, child) in enumerate(children if settings.tree else children[:1])
    ]
    return [branch for branch in result if branch.chance >= settings.min_token_prob]
