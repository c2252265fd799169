"""Counts of token strings in a changing set of growing texts: a suffix tree stored as its sorted leaves.

The starts of all texts are sorted by the `width` tokens that follow them. The occurrences of a string are then an
interval, and those of each of its continuations an interval within it: a node of the tree is an interval, its count the
interval's length. A start takes eight bytes, where linked nodes of bounded depth take many times as much. Near the end
of a growing text a start's place still changes; these fewer than `width` starts are kept apart and sorted again
whenever the text grows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.core.errors import InvalidRequest

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
