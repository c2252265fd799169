"""The target's rows of one step, transformed on demand.

Each row's history holds the drafted tokens on its path, so that penalties and masks apply to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.trees import path_tokens
from engine.core.types import Mask, SamplingParams, Tree
from engine.sampling.transforms import TransformedRow, transform

MaskOf = Callable[[Sequence[int]], Mask]
"""The generated tokens before a position, drafted ones included -> the tokens that the grammar allows there."""


class TargetRows:
    """Row 0 is the root's, row i + 1 node i's.

    Args:
        logits: [1 + N, V] as the model gave them.
        tree: the N drafted nodes.
        history: prompt and committed tokens, the root last.
        n_prompt: how many of `history` are the prompt.
        params: the request's sampling parameters.
        eos_ids: the model's end tokens.
        masks: the request's grammar; None without one.
    """

    def __init__(
        self,
        logits: NDArray[np.floating[Any]],
        tree: Tree,
        history: Sequence[int],
        n_prompt: int,
        params: SamplingParams,
        eos_ids: tuple[int, ...],
        masks: MaskOf | None = None,
    ) -> None:
        self.logits = logits
        self.tree = tree
        self._history = history
        self._n_prompt = n_prompt
        self._params = params
        self._eos_ids = eos_ids
        self._masks = masks
        self._done: dict[int, TransformedRow] = {}

    @property
    def position(self) -> int:
        """Absolute position of the token that row 0 decides."""
        return len(self._history)

    @property
    def greedy(self) -> bool:
        """Whether each row has all its mass on one token."""
        return self._params.greedy

    def __getitem__(self, row: int) -> TransformedRow:
        """The distribution after the path to the row's node."""
        if row not in self._done:
            history = [*self._history, *path_tokens(self.tree, row - 1)]
            self._done[row] = transform(
                self.logits[row], history, self._n_prompt, self._params, self._eos_ids, self.allowed(row)
            )
        return self._done[row]

    def allowed(self, row: int) -> Mask | None:
        """The grammar's mask on the row, given the path to its node; None without a grammar."""
        if self._masks is None:
            return None
        return self._masks([*self._history[self._n_prompt :], *path_tokens(self.tree, row - 1)])

    def best(self, row: int) -> int:
        """The row's most likely token, the lowest id on exact ties."""
        if self._params.plain_scores:
            token = int(self.logits[row].argmax())
            if np.isfinite(self.logits[row][token]):
                return token
        return int(np.argmax(self[row].scores))

    def chance(self, row: int, token: int) -> float:
        """The token's p; at temperature 0 all mass is on the best one."""
        if self.greedy:
            return float(token == self.best(row))
        return float(self[row].p[token])
