"""The mask of a grammar as a function of the generated tokens.

Behind the function a matcher follows the prefix that was asked last: it rolls back to the longest common prefix and
accepts from there. Drafted tokens that were rejected are undone by that rule alone, with no notice from the loop.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from engine.constraints.interface import CompiledGrammar, TokenSpelling
from engine.core.types import Mask

KEPT: Final = 64
"""Masks kept: those of a step's rows, which the draft and the target ask alike."""


class PrefixConstraint:
    """One request's masks.

    An end token is allowed exactly where the answer is whole, beside the tokens that go on with it. After an end token
    or a token that the grammar forbids only end tokens are allowed: no answer gets there.

    Args:
        grammar: the compiled grammar.
        spelling: the bytes of every token.
        ends: the tokens that end the answer, at least one.
    """

    def __init__(self, grammar: CompiledGrammar, spelling: TokenSpelling, ends: Sequence[int]) -> None:
        self._matcher = grammar.matcher()
        self._ends = sorted(set(ends))
        self._text = np.array([bool(token) for token in spelling.tokens])
        self._text[self._ends] = False
        self._path: list[int] = []
        self._kept: dict[tuple[int, ...], Mask] = {}

    def __call__(self, generated: Sequence[int]) -> Mask:
        """[V] the tokens that may follow `generated`; read-only."""
        key = tuple(generated)
        known = self._kept.get(key)
        if known is None:
            known = self._mask(key)
            known.setflags(write=False)
            if len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = known
        return known

    def _mask(self, generated: tuple[int, ...]) -> Mask:
        follows = self._follow(generated)
        mask: Mask = self._matcher.mask() & self._text if follows else np.zeros(len(self._text), dtype=np.bool_)
        mask[self._ends] = self._matcher.complete() if follows else True
        return mask

    def _follow(self, generated: tuple[int, ...]) -> bool:
        """Bring the matcher to a prefix; False if the grammar does not have it."""
        shared = _shared(self._path, generated)
        if shared < len(self._path):
            self._matcher.rollback(len(self._path) - shared)
            del self._path[shared:]
        for token in generated[shared:]:
            if not self._text[token] or not self._matcher.accept(token):
                return False
            self._path.append(token)
        return True


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning."""
    least = min(len(first), len(second))
    if tuple(first[:least]) == tuple(second[:least]):
        return least
    return next(at for at in range(least) if first[at] != second[at])
