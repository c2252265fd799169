"""The protocol between the decoding loop and a model, and the placement of one step's tokens.

A model is a pure function of (cache, placed tokens): the caller states each token's position, its cache column, and
the columns that each query may see. A chain, a tree and a ragged batch are then the same call. Node i of a row with n
committed tokens is written to column n + i and sees the committed columns and its own path; a chain's nodes then sit in
their final columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from engine.core.trees import ancestors, depths, is_chain
from engine.core.types import Tree


class SlotCache(Protocol):
    """Keys and values of `rows` sequences, addressed by explicit columns.

    Column `t` of a row holds the committed token at position `t`; columns after the committed length are scratch and
    are simply overwritten. The column `trash` takes the writes of padding and is never visible.
    """

    rows: int
    capacity: int
    """Number of usable columns."""
    trash: int

    def commit(self, row: int, source: tuple[int, ...], target: tuple[int, ...]) -> None:
        """Copy columns `source` to `target` in one row: the accepted path of a tree."""


@dataclass(frozen=True, slots=True)
class Placement:
    """B rows of T query tokens each; row b has `lengths[b]` tokens, the rest is padding.

    tokens, positions, slots: [B, T] int64. Padding has token 0, position 0, slot `trash`.
    span: number of columns S that queries may see, from column 0.
    branches: [B, T, S] bool, the columns that each query sees; None if each sees the columns up to its position.
    first_row: row b of the batch is row `first_row + b` of the cache.
    real: of rows that were completed to one width, the number of tokens that are not fillers; None if none was. A
        filler is counted in `lengths`, is written to `trash` and stands at the position of the row's last token.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    lengths: tuple[int, ...]
    span: int
    branches: Tensor | None = None
    first_row: int = 0
    real: tuple[int, ...] | None = None

    @property
    def visible(self) -> Tensor:
        """[B, T, S] bool. Every query, padding too, sees at least one column."""
        if self.branches is not None:
            return self.branches
        return torch.arange(self.span)[None, None, :] <= self.positions[:, :, None]

    @property
    def ragged(self) -> bool:
        """Some row has padding."""
        return min(self.lengths) < self.tokens.shape[1]


@dataclass(frozen=True, slots=True)
class Sublayers:
    """The sublayers that run, by layer index from 0: attention and feed-forward apart.

    An omitted sublayer adds nothing to the residual stream, and an omitted attention writes no keys and values. The
    embedding, the final norm and the head always run.
    """

    attention: tuple[int, ...]
    ffn: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WantedOutputs:
    """The wanted outputs of a forward: logits of all queries or none, hidden states by layer id.

    Layer ids index HF `hidden_states`: 0 is the embedding, i the output of layer i, the last one after the final norm.
    `part` names the sublayers that run; None is the whole model.
    """

    logits: bool = True
    hidden: tuple[int, ...] = ()
    part: Sublayers | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    """logits [B, T, V] in the model's dtype (None if not wanted); hidden states [B, T, H] by layer id.

    Values at padding are meaningless.
    """

    logits: Tensor | None
    hidden: Mapping[int, Tensor]


@runtime_checkable
class TargetModel(Protocol):
    """A causal language model that computes any placed tokens."""

    @property
    def vocabulary(self) -> int:
        """Number of logits."""

    @property
    def context(self) -> int:
        """The largest number of positions that the model supports."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation."""

    @property
    def divisible(self) -> int:
        """Number of layers whose sublayers a `Part` can leave out; 0 if the model runs whole only."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """The model's identity: source, architecture, dtype, loader, digests of its files."""

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """An empty cache. Raises CapacityError: `capacity` exceeds the model's context."""

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        """Write the placed tokens into the cache and return the wanted outputs.

        Raises:
            InvalidRequest: a part that the model cannot run.
        """


def to_numpy(tensor: Tensor) -> NDArray[np.floating[Any]]:
    """The tensor's values, exactly; 16-bit floats, which numpy lacks, become float32."""
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    values: NDArray[np.floating[Any]] = (tensor.float() if half else tensor).cpu().numpy()
    return values


class WrappedModel:
    """A model that is the inner one in everything."""

    def __init__(self, inner: TargetModel) -> None:
        self.inner = inner
        self.vocabulary, self.context, self.eos_ids = inner.vocabulary, inner.context, inner.eos_ids
        self.divisible = inner.divisible
        # a fault does not give itself away
        self.facts = inner.facts

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """As the inner model's."""
        return self.inner.new_cache(rows, capacity)

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        """As the inner model's."""
        return self.inner.forward(cache, placement, want)


def chain_placement(
    tokens: Sequence[Sequence[int]], starts: Sequence[int], trash: int, first_row: int = 0
) -> Placement:
    """The placement of one run of consecutive tokens per row.

    Args:
        tokens: B lists of new tokens, ragged; an empty list makes a row of padding.
        starts: position of each row's first token.
        trash: the cache's trash column.
        first_row: cache row of the first batch row.
    """
    lengths = tuple(len(row) for row in tokens)
    shape = (len(tokens), max(1, *lengths))
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    slots = np.full(shape, trash, np.int64)
    for b, (row, start) in enumerate(zip(tokens, starts, strict=True)):
        count = len(row)
        ids[b, :count] = row
        positions[b, :count] = slots[b, :count] = np.arange(start, start + count)
    return Placement(
        tokens=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        lengths=lengths,
        span=max(1, *(start + length for start, length in zip(starts, lengths, strict=True))),
        first_row=first_row,
    )


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
