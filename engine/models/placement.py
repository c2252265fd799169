"""The placement of one step's tokens: the root and its drafted nodes, for a ragged batch.

Node i of a row with n committed tokens is written to column n + i and sees the committed columns and its own path; a
chain's nodes then sit in their final columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from engine.core.trees import ancestors, depths, is_chain
from engine.core.types import Tree
from engine.models.interface import Placement, SlotCache, chain_placement


@dataclass(frozen=True, slots=True)
class Placed:
    """One row's step: `last` is the newest committed token, at position `committed - 1`.

    `first` is the first node that is placed; the root, which is node -1, counts. Earlier ones are in the cache.
    """

    last: int
    committed: int
    tree: Tree
    first: int = -1


def place(steps: Sequence[Placed | None], trash: int) -> Placement:
    """The placement of one step; None makes a row of padding."""
    if all(step is None or is_chain(step.tree) for step in steps):
        tokens = [[step.last, *step.tree.tokens] if step else [] for step in steps]
        return chain_placement(tokens, [step.committed - 1 if step else 0 for step in steps], trash)
    return place_trees(steps, trash)


def place_trees(steps: Sequence[Placed | None], trash: int) -> Placement:
    """As `place`, of any trees, and of steps whose first nodes were placed before."""
    lengths = tuple(len(step.tree) - step.first if step else 0 for step in steps)
    span = max(step.committed + len(step.tree) for step in steps if step)
    shape = (len(steps), max(1, *lengths))
    tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    slots = np.full(shape, trash, np.int64)
    visible = np.zeros((*shape, span), np.bool_)
    visible[:, :, 0] = True
    for b, step in enumerate(steps):
        if step is None:
            continue
        count, new, end = lengths[b], slice(step.first + 1, None), step.committed + len(step.tree)
        tokens[b, :count] = [step.last, *step.tree.tokens][new]
        positions[b, :count] = step.committed - 1 + np.array([0, *depths(step.tree)])[new]
        slots[b, :count] = np.arange(step.committed + step.first, end)
        visible[b, :count, : step.committed] = True
        visible[b, :count, step.committed : end] = np.pad(ancestors(step.tree), ((1, 0), (0, 0)))[new]
    return Placement(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        lengths=lengths,
        span=span,
        branches=torch.from_numpy(visible),
    )


def completed(placement: Placement, width: int, span: int, trash: int) -> Placement:
    """The placement with every row filled up to `width` tokens, over `span` columns."""
    rows, given = placement.tokens.shape
    counts = np.array(placement.lengths)[:, None]
    real = torch.from_numpy(np.arange(width)[None, :] < counts)
    last = torch.from_numpy(np.maximum(counts - 1, 0))
    wide = (0, width - given)
    branches = placement.branches
    if branches is not None:
        branches = F.pad(branches, (0, span - placement.span, *wide)) & real.unsqueeze(2)
        # a filler has to see something
        branches[:, :, 0] |= ~real
    return replace(
        placement,
        tokens=torch.where(real, F.pad(placement.tokens, wide), 0),
        positions=torch.where(real, F.pad(placement.positions, wide), placement.positions.gather(1, last)),
        slots=torch.where(real, F.pad(placement.slots, wide), trash),
        lengths=(width,) * rows,
        span=span,
        branches=branches,
        real=placement.lengths,
    )


def accepted_columns(committed: int, path: Sequence[int]) -> tuple[int, ...]:
    """The scratch columns of an accepted path's nodes."""
    return tuple(committed + node for node in path)


def keep_path(cache: SlotCache, row: int, committed: int, path: Sequence[int]) -> None:
    """Move the accepted nodes' columns behind the tokens `committed` before the step, if they are not already there."""
    source = accepted_columns(committed, path)
    target = accepted_columns(committed, range(len(path)))
    if source != target:
        cache.commit(row, source, target)
