"""A draft model that reads token trees, level by level, in a cache of its own.

Node i of a row with n committed tokens sits in column n + i and sees the committed columns and its own path, as in the
target's forward. After a verdict the accepted nodes' columns move to their final places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.core.types import StepOutcome, Tree
from engine.models.interface import Placed, Placement, WantedOutputs, accepted_columns, place_trees
from engine.proposers.draft_model.chain_draft import CachedDrafter
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


class TreeReader(CachedDrafter):
    """Reads committed tokens and drafted nodes of several rows."""

    def roots(self, contexts: Sequence[Context]) -> Mapping[int, Tensor]:
        """[V] logits after each row's newest committed token; tokens not read yet are read first."""
        read = self.read_on({context.row: context.history for context in contexts})
        return {row: logits[-1] for row, logits in read.items()}

    def read(self, levels: Mapping[int, TreeLevel]) -> Mapping[int, Tensor]:
        """[n, V] logits after the n new nodes of each row; the nodes before them were read earlier."""
        placement = place_levels(levels, self._cache.rows, self._cache.trash)
        logits = self._model.forward(self._cache, placement, WantedOutputs()).logits
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


def place_levels(levels: Mapping[int, TreeLevel], rows: int, trash: int) -> Placement:
    """The placement of each row's new nodes; rows without any are padding."""
    # no level has the root, so its token does not matter
    given = {row: Placed(0, level.committed, level.tree, level.first) for row, level in levels.items()}
    return place_trees([given.get(row) for row in range(rows)], trash)
