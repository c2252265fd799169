"""The target's rows, transformed from changed inputs: parameters, committed tokens or drafted path.

The recorded logits stay the model's. This module knows no fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.core.trees import path_tokens
from engine.core.types import SamplingParams, Tree
from engine.decode.seams import EngineParts
from engine.faults.wrappers import WrappedRows, with_rows
from engine.sampling.target_rows import TargetRows
from engine.sampling.transforms import TransformedRow, transform


@dataclass(frozen=True, slots=True)
class RowInputs:
    """The inputs of the transform of one row.

    committed: prompt and committed tokens.
    path: the drafted tokens that lead to the row.
    drafted: True if a drafted token is tested against the row.
    """

    committed: Sequence[int]
    path: tuple[int, ...]
    n_prompt: int
    drafted: bool
    params: SamplingParams

    def without(self, off: Mapping[str, Any]) -> RowInputs:
        """The same inputs with some parameters at their neutral values."""
        return replace(self, params=replace(self.params, **off))


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one request.

    history: prompt and committed tokens; the same list throughout a request, and as long as the prompt in its first
        step.
    """

    history: Sequence[int]
    n_prompt: int
    tree: Tree


ChangeInputs = Callable[[RowInputs], RowInputs]
OfStep = Callable[[Step], ChangeInputs]


class _ChangedRows(WrappedRows):
    def __init__(self, inner: TargetRows, of_step: OfStep) -> None:
        super().__init__(inner)
        self._change = of_step(Step(self._history, self._n_prompt, self.tree))

    def __getitem__(self, row: int) -> TransformedRow:
        """The distribution after the path to the row's node, computed from the changed inputs."""
        if row not in self._done:
            path = path_tokens(self.tree, row - 1)
            drafted = row - 1 in self.tree.parents
            inputs = self._change(RowInputs(self._history, path, self._n_prompt, drafted, self._params))
            history = [*inputs.committed, *inputs.path]
            self._done[row] = transform(
                self.logits[row], history, self._n_prompt, inputs.params, self._eos_ids, self.allowed(row)
            )
        return self._done[row]


def with_inputs_by_step(parts: EngineParts, of_step: OfStep) -> EngineParts:
    """Parts that change the inputs of rows; `of_step` is called once per step of each request."""
    return with_rows(parts, lambda rows: _ChangedRows(rows, of_step))


def with_inputs(parts: EngineParts, change: ChangeInputs) -> EngineParts:
    """Parts that change the inputs of rows in the same way in every step."""
    return with_inputs_by_step(parts, lambda _step: change)


class StepEnds:
    """The last token of each step of every request, learned from the histories from which rows are made."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[int, ...]] = {}

    def before(self, step: Step) -> tuple[int, ...]:
        """The last tokens of the steps before this one, whose root is the newest token of the history."""
        known = self._ends.get(id(step.history), ())
        ends = () if len(step.history) == step.n_prompt else (*known, step.history[-1])
        self._ends[id(step.history)] = ends
        return ends
