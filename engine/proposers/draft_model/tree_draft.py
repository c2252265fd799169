"""A draft model that reads token trees, level by level, in a cache of its own.

Node i of a row with n committed tokens sits in column n + i and sees the
committed columns and its own path, as in the target's forward. After a verdict
the accepted nodes' columns move to their final places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.core.trees import ancestors, depths
from engine.core.types import StepOutcome, Tree
from engine.models.interface import Placement, TargetModel, WantedOutputs, chain_placement
from engine.models.placement import accepted_columns
from engine.proposers.draft_model.chain_draft import read_prompt
from engine.proposers.interface import Context


@dataclass(frozen=True, slots=True)
class TreeLevel:
    """One row's next input: nodes `first` and later of its tree, after `committed` tokens."""

    committed: int
    tree: Tree
    first: int

    @property
    def count(self) -> int:
        """Number of nodes to read."""
        return len(self.tree) - self.first


class TreeReader:
    """Reads committed tokens and drafted nodes of several rows."""

    def __init__(self, model: TargetModel, rows: int, capacity: int) -> None:
        self.model = model
        self._cache = model.new_cache(rows, min(capacity, model.context))
        self._valid = [0] * rows

    def room(self, context: Context) -> int:
        """The number of nodes that still fit behind the row's committed tokens."""
        return max(0, self._cache.capacity - len(context.history))

    def start(self, context: Context) -> None:
        """Read the prompt but its last token, if it fits."""
        self._valid[context.row] = read_prompt(self.model, self._cache, context)

    def roots(self, contexts: Sequence[Context]) -> Mapping[int, Tensor]:
        """[V] logits after each row's newest committed token; tokens not read yet are read first."""
        histories = {context.row: context.history for context in contexts}
        tokens = [list(histories[row][valid:]) if row in histories else [] for row, valid in enumerate(self._valid)]
        placement = chain_placement(tokens, list(self._valid), self._cache.trash)
        logits = self.model.forward(self._cache, placement, WantedOutputs()).logits
        assert logits is not None
        for row, history in histories.items():
            self._valid[row] = len(history)
        return {row: logits[row, len(tokens[row]) - 1] for row in histories}

    def read(self, levels: Mapping[int, TreeLevel]) -> Mapping[int, Tensor]:
        """[n, V] logits after the n new nodes of each row; the nodes before them were read earlier."""
        placement = place_levels(levels, self._cache.rows, self._cache.trash)
        logits = self.model.forward(self._cache, placement, WantedOutputs()).logits
        assert logits is not None
        return {row: logits[row, : level.count] for row, level in levels.items()}

    def observe(self, context: Context, verdict: StepOutcome, read: int) -> None:
        """Keep the accepted nodes among the first `read` ones, moved to their places."""
        before = len(context.history) - len(verdict.emitted)
        if self._valid[context.row] < before:
            return
        path = [item.node for item in verdict.examined if item.accepted and item.node < read]
        source, target = accepted_columns(before, path), accepted_columns(before, range(len(path)))
        if source != target:
            self._cache.commit(context.row, source, target)
        self._valid[context.row] = min(before + len(path), len(context.history) - 1)

    def finish(self, row: int) -> None:
        """Forget the row."""
        self._valid[row] = 0


def place_levels(levels: Mapping[int, TreeLevel], rows: int, trash: int) -> Placement:
    """The placement of each row's new nodes; rows without any are padding."""
    lengths = tuple(levels[row].count if row in levels else 0 for row in range(rows))
    span = max(level.committed + len(level.tree) for level in levels.values())
    shape = (rows, max(1, *lengths))
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    slots = np.full(shape, trash, np.int64)
    visible = np.zeros((*shape, span), np.bool_)
    visible[:, :, 0] = True
    for row, level in levels.items():
        new = slice(level.first, len(level.tree))
        count, end = level.count, level.committed + len(level.tree)
        tokens[row, :count] = level.tree.tokens[new]
        positions[row, :count] = level.committed - 1 + np.array(depths(level.tree)[new])
        slots[row, :count] = np.arange(level.committed + level.first, end)
        visible[row, :count, : level.committed] = True
        visible[row, :count, level.committed : end] = ancestors(level.tree)[new]
    return Placement(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        lengths=lengths,
        span=span,
        branches=torch.from_numpy(visible),
    )
