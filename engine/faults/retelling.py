"""What faults of the target's rows are made of: a row whose transform is told something else.

Knows no fault, and nothing about the rule that asks for the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.trees import path_tokens
from engine.core.types import SamplingParams, Tree
from engine.decode.seams import EngineParts
from engine.sampling.target_rows import TargetRows
from engine.sampling.transforms import TransformedRow, transform

NO_PENALTIES: Final = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
NO_MASKS: Final = {"logit_bias": (), "bad_words": (), "min_tokens": 0}
NO_TRUNCATION: Final = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


@dataclass(frozen=True, slots=True)
class Told:
    """What the transform of one row knows.

    committed: prompt and committed tokens.
    path: the drafted tokens that lead to the row.
    drafted: whether a drafted token is tested against the row.
    """

    committed: Sequence[int]
    path: tuple[int, ...]
    n_prompt: int
    drafted: bool
    params: SamplingParams


Retell = Callable[[Told], Told]


class RetoldRows(TargetRows):
    """The target's rows after another story; recorded rows stay the model's."""

    def __init__(
        self,
        logits: NDArray[np.floating[Any]],
        tree: Tree,
        history: Sequence[int],
        n_prompt: int,
        params: SamplingParams,
        eos_ids: tuple[int, ...],
        retell: Retell,
    ) -> None:
        super().__init__(logits, tree, history, n_prompt, params, eos_ids)
        self._retell = retell

    def __getitem__(self, row: int) -> TransformedRow:
        """The distribution after the path to the row's node, as far as it is told."""
        if row not in self._done:
            path = path_tokens(self.tree, row - 1)
            drafted = row - 1 in self.tree.parents
            told = self._retell(Told(self._history, path, self._n_prompt, drafted, self._params))
            history = [*told.committed, *told.path]
            self._done[row] = transform(self.logits[row], history, self._n_prompt, told.params, self._eos_ids)
        return self._done[row]


def retold_by_step(parts: EngineParts, of_step: Callable[[Sequence[int], int], Retell]) -> EngineParts:
    """Parts whose rows are told something else; `of_step` gets the history and the prompt's length, once per step."""

    def rows(
        logits: NDArray[np.floating[Any]],
        tree: Tree,
        history: Sequence[int],
        n_prompt: int,
        params: SamplingParams,
        eos_ids: tuple[int, ...],
    ) -> TargetRows:
        return RetoldRows(logits, tree, history, n_prompt, params, eos_ids, of_step(history, n_prompt))

    return replace(parts, rows=rows)


def retold(parts: EngineParts, retell: Retell) -> EngineParts:
    """Parts whose rows are told something else, the same in every step."""
    return retold_by_step(parts, lambda _history, _n_prompt: retell)


def without(told: Told, off: dict[str, Any]) -> Told:
    """The same story with some parameters at their neutral values."""
    return replace(told, params=replace(told.params, **off))


class Steps:
    """The last token of each step of every request, learned from the histories that rows are made with.

    A history is the same list throughout a request, and as long as the prompt in its first step.
    """

    def __init__(self) -> None:
        self._ends: dict[int, tuple[int, ...]] = {}

    def ends(self, history: Sequence[int], n_prompt: int) -> tuple[int, ...]:
        """The last tokens of the steps before this one, which has the history's newest token as its root."""
        known = self._ends.get(id(history), ())
        ends = () if len(history) == n_prompt else (*known, history[-1])
        self._ends[id(history)] = ends
        return ends
