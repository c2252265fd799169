"""The protocol between the decoding loop and a model.

A model is a pure function of (cache, placed tokens): the caller states each token's position, its cache column, and
the columns that each query may see. A chain, a tree and a ragged batch are then the same call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class SlotCache(Protocol):
    """Keys and values of `rows` sequences, addressed by explicit columns.

    Column `t` of a row holds the committed token at position `t`; columns after
    the committed length are scratch and are simply overwritten. The column
    `trash` takes the writes of padding and is never visible.
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
        """An empty cache.

        Raises:
            CapacityError: `capacity` exceeds the model's context.
        """

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


def chain_placement(
    tokens: Sequence[Sequence[int]], starts: Sequence[int], trash: int, first_row: int = 0, span: int | None = None
) -> Placement:
    """The placement of one run of consecutive tokens per row.

    Args:
        tokens: B lists of new tokens, ragged; an empty list makes a row of padding.
        starts: position of each row's first token.
        trash: the cache's trash column.
        first_row: cache row of the first batch row.
        span: number of visible columns S; by default the longest row's end.
    """
    lengths = tuple(len(row) for row in tokens)
    shape = (len(tokens), max(1, *lengths))
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    slots = np.full(shape, trash, np.int64)
    for b, (row, start) in enumerate(zip(tokens, starts, strict=True)):
        count = len(row)
        ids[b, :count] = row
        positions[b, :count] = slots[b, :count] = np.arange(start, start + count)
    end = max(1, *(start + length for start, length in zip(starts, lengths, strict=True)))
    return Placement(
        tokens=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        slots=torch.from_numpy(slots),
        lengths=lengths,
        span=span or end,
        first_row=first_row,
    )
