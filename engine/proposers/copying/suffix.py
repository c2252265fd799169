"""Suffix decoding (Arctic Inference, 2411.04975): propose what most often followed the longest recurring suffix.

The proposer counts the continuations of the longest recurring suffix in the request's own history and, with
`cached_requests`, in the last finished responses. The match's length and the counts' confidence limit the draft. It is
a deterministic function of what was counted, so q is one-hot. The proposer has no weights.

The counts are those of a suffix tree over a changing set of growing texts, stored as its sorted leaves. The starts of
all texts are sorted by the `width` tokens that follow them. The occurrences of a string are then an interval, and those
of each of its continuations an interval within it: a node of the tree is an interval, its count the interval's length.
A start takes eight bytes, where linked nodes of bounded depth take many times as much. Near the end of a growing text a
start's place still changes; these fewer than `width` starts are kept apart and sorted again whenever the text grows.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np

from engine.core.errors import InvalidRequest
from engine.core.trees import ROOT
from engine.core.types import Proposal, QKind, StepOutcome, Tree
from engine.proposers.interface import Context, ProposerFacts, ProposerParts, SharedMemory
from engine.proposers.options import read

_OWN: Final = 0
"""The number of the only text in a request's own tree."""
END: Final = -1
"""Stands after the last token of a text; sorts before every token."""
_SHIFT: Final = 32
"""A start is one number: the text's above these bits, the place in the text below."""
_PLACE: Final = (1 << _SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Node:
    """A string of `length` tokens and where it occurs: an interval of the settled and one of the waiting starts."""

    length: int
    settled: range
    waiting: range

    @property
    def count(self) -> int:
        """Number of occurrences."""
        return len(self.settled) + len(self.waiting)


class SuffixTree:
    """Counts of every string of at most `width` tokens in a set of numbered texts.

    Args:
        width: longest string that can be queried, in tokens.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._texts: dict[int, list[int]] = {}
        self._settled = array("q")
        self._waiting = array("q")

    @property
    def texts(self) -> Mapping[int, Sequence[int]]:
        """The texts by number, in the order in which they came."""
        return self._texts

    def grow(self, text: int, tokens: Sequence[int]) -> None:
        """Append `tokens` to a text; a new number, in [0, 2^31), begins one."""
        held = self._texts.setdefault(text, [])
        first = text << _SHIFT
        self._waiting.extend(range(first + len(held), first + len(held) + len(tokens)))
        held.extend(tokens)
        self._settle(range(first, first + len(held) - self._width + 1))

    def close(self, text: int) -> None:
        """The text will not grow: its last starts settle too."""
        first = text << _SHIFT
        self._settle(range(first, first + len(self._texts[text])))

    def remove(self, text: int) -> None:
        """Forget a text; takes time proportional to all that is held."""
        self._settled = _without(self._settled, text)
        self._waiting = _without(self._waiting, text)
        del self._texts[text]

    def find(self, string: Sequence[int]) -> Node:
        """The node of a string; its count is 0 if the string does not occur.

        Raises:
            InvalidRequest: the string is longer than `width`.
        """
        if len(string) > self._width:
            raise InvalidRequest(f"a suffix tree of width {self._width} cannot find a string of {len(string)} tokens")
        wanted = list(string)
        return Node(len(wanted), self._interval(self._settled, wanted), self._interval(self._waiting, wanted))

    def followed(self, node: Node) -> int:
        """Number of the node's occurrences that a token follows; continuations after `width` tokens are not counted."""
        if node.length == self._width:
            return 0
        return sum(span.stop - self._edge(starts, span, node.length, END) for starts, span in self._parts(node))

    def longest(self, history: Sequence[int], most: int) -> Node:
        """The node of the longest suffix of `history`, of at most `most` tokens, that some token follows.

        A token that follows a string follows the string's suffixes too, so lengths can be tried by halving. Most
        matches are short, so they are doubled until one fails.
        """
        runs = self.find(())
        low, high = 0, min(most, len(history), self._width - 1)
        while low < high:
            length = min(max(1, 2 * low), (low + high + 1) // 2)
            node = self.find(history[len(history) - length :])
            if self.followed(node):
                low, runs = length, node
            else:
                high = length - 1
        return runs

    def children(self, node: Node, least: int = 1) -> dict[int, Node]:
        """The nodes of the string and one more token that occur `least` times or more, by that token.

        The most frequent comes first, the lowest id among equals. What follows `width` tokens is not seen.
        """
        if node.length == self._width:
            return {}
        # a token that is frequent enough fills half of `least` places in a row somewhere: no need to look at each
        run = (max(1, least) + 1) // 2
        tokens = {
            self._after(starts[at], node.length)
            for starts, span in self._parts(node)
            for at in range(span.start + run - 1, span.stop, run)
        }
        result = {token: self._child(node, token) for token in sorted(tokens - {END})}
        kept = {token: child for token, child in result.items() if child.count >= least}
        return dict(sorted(kept.items(), key=lambda item: -item[1].count))

    def _child(self, node: Node, token: int) -> Node:
        settled, waiting = (
            range(self._edge(starts, span, node.length, token - 1), self._edge(starts, span, node.length, token))
            for starts, span in self._parts(node)
        )
        return Node(node.length + 1, settled, waiting)

    def _parts(self, node: Node) -> Iterator[tuple[array[int], range]]:
        yield self._settled, node.settled
        yield self._waiting, node.waiting

    def _interval(self, starts: array[int], wanted: list[int]) -> range:
        """The starts of a string among sorted `starts`."""
        length = len(wanted)

        def head(start: int) -> list[int]:
            return self._window(start, length)

        low = bisect_left(starts, wanted, key=head)
        if low == len(starts) or head(starts[low]) != wanted:
            return range(low, low)
        return range(low, bisect_right(starts, wanted, low, key=head))

    def _edge(self, starts: array[int], span: range, length: int, token: int) -> int:
        """Where the starts in `span` end that have `token` or a lower one after `length` tokens."""
        return bisect_right(starts, token, span.start, span.stop, key=lambda start: self._after(start, length))

    def _settle(self, among: range) -> None:
        """Find lasting places for the waiting starts `among` these, and the present places of the others."""
        kept = [start for start in self._waiting if start not in among]
        starts = sorted((start for start in self._waiting if start in among), key=self._window)
        self._waiting = array("q", sorted(kept, key=self._window))
        if starts:
            places = [bisect_right(self._settled, self._window(start), key=self._window) for start in starts]
            self._settled = array("q", np.insert(np.asarray(self._settled), places, starts).tobytes())

    def _window(self, start: int, length: int | None = None) -> list[int]:
        """The `length` tokens from a start on, `width` by default; fewer at the end of a text."""
        place = start & _PLACE
        return self._texts[start >> _SHIFT][place : place + (self._width if length is None else length)]

    def _after(self, start: int, distance: int) -> int:
        """The token `distance` places after a start, or END."""
        text, place = self._texts[start >> _SHIFT], (start & _PLACE) + distance
        return text[place] if place < len(text) else END


def _without(starts: array[int], text: int) -> array[int]:
    held = np.asarray(starts)
    return array("q", held[held >> _SHIFT != text].tobytes())


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
        best, score = draft(self._rows[context.row].tree, context, self._settings)
        if self._settings.cached_requests:
            other, expected = draft(self._cache.tree, context, self._settings)
            # ties go to the request's own history, the nearer source
            best = other if expected > score else best
        return Proposal(best, QKind.ONE_HOT) if len(best) else Proposal()

    def observe(self, context: Context, verdict: StepOutcome) -> None:
        """Count the emitted tokens."""
        row, tokens = self._rows[context.row], [item.token for item in verdict.emitted]
        row.tree.grow(_OWN, tokens)
        row.response.extend(tokens)

    def finish(self, row: int) -> None:
        """Forget the row; its response goes to the cache."""
        self._cache.add(self._rows.pop(row).response)


def draft(tree: SuffixTree, context: Context, settings: SuffixOptions) -> tuple[Tree, float]:
    """The likeliest continuations of the longest suffix of the history in `tree`, and the expected accepted tokens.

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
    return Tree(tuple(tokens), tuple(parents)), score


def _branches(tree: SuffixTree, node: Node, parent: int, chance: float, settings: SuffixOptions) -> list[_Continuation]:
    """The likely enough continuations of a node whose path has probability `chance`; without `tree` only the best."""
    total = tree.followed(node)
    children = list(tree.children(node, max(1, math.floor(settings.min_token_prob / chance * total))).items())
    result = [
        _Continuation(-chance * child.count / total, parent, rank, token, child)
        for rank, (token, child) in enumerate(children if settings.tree else children[:1])
    ]
    return [branch for branch in result if branch.chance >= settings.min_token_prob]
