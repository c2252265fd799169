"""The protocol between the decoding loop and a model.

A model is a pure function of (cache, placed tokens): the caller says which
token sits at which position, which column of the cache it is written to, and
which columns each query may see. A chain, a tree and a ragged batch are then
the same call. Knows nothing about sampling or proposals.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """B rows of T query tokens each, padded.

    tokens, positions, slots: [B, T] int64. Padding has token 0, position 0, slot `trash`.
    visible: [B, T, S] bool over columns 0..S-1. Every query, padding too, sees at least one column.
    first_row: row b of the batch is row `first_row + b` of the cache.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    visible: Tensor
    first_row: int = 0


@dataclass(frozen=True, slots=True)
class Want:
    """What a forward should return: logits of all queries or none, hidden states by layer id.

    Layer ids index HF `hidden_states`: 0 is the embedding, i the output of layer i, the last one after the final norm.
    """

    logits: bool = True
    hidden: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Forward:
    """logits [B, T, V] in the model's dtype (None if not wanted); hidden states [B, T, H] by layer id."""

    logits: Tensor | None
    hidden: Mapping[int, Tensor]


@runtime_checkable
class TargetModel(Protocol):
    """A causal language model that can be asked about any placed tokens."""

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        ...

    @property
    def context(self) -> int:
        """Most positions that the model was made for."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What identifies the model: source, architecture, dtype, loader, digests of its files."""
        ...

    def new_cache(self, rows: int, capacity: int) -> SlotCache:
        """An empty cache.

        Raises:
            CapacityError: `capacity` exceeds the model's context.
        """
        ...

    def forward(self, cache: SlotCache, placement: Placement, want: Want) -> Forward:
        """Write the placed tokens into the cache and return what is wanted."""
        ...


def to_numpy(tensor: Tensor) -> NDArray[np.floating[Any]]:
    """The tensor's values, exactly; 16-bit floats, which numpy lacks, become float32."""
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    values: NDArray[np.floating[Any]] = (tensor.float() if half else tensor).numpy()
    return values


def chain_placement(
    tokens: list[list[int]], starts: list[int], trash: int, first_row: int = 0, span: int | None = None
) -> Placement:
    """The placement of one run of consecutive tokens per row.

    Args:
        tokens: B lists of new tokens, ragged; an empty list makes a row of padding.
        starts: position of each row's first token.
        trash: the cache's trash column.
        first_row: cache row of the first batch row.
        span: number of visible columns S; by default the longest row's end.
    """
    batch, width = len(tokens), max(1, *(len(row) for row in tokens))
    ends = [start + len(row) for start, row in zip(starts, tokens, strict=True)]
    span = span or max(1, *ends)
    ids = torch.zeros(batch, width, dtype=torch.long)
    positions = torch.zeros(batch, width, dtype=torch.long)
    slots = torch.full((batch, width), trash, dtype=torch.long)
    for b, (row, start) in enumerate(zip(tokens, starts, strict=True)):
        ids[b, : len(row)] = torch.tensor(row, dtype=torch.long)
        positions[b, : len(row)] = torch.arange(start, start + len(row))
        slots[b, : len(row)] = positions[b, : len(row)]
    visible = torch.arange(span)[None, None, :] <= positions[:, :, None]
    return Placement(ids, positions, slots, visible, first_row)
