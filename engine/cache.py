"""Key and value storage addressed by columns, and the refusal of state that cannot be rolled back.

Rejected tokens need no removal: their columns are overwritten by the next
step. That works only for models whose whole state is one key and one value per
token, which is what `require_rollback` asks of a configuration. Knows nothing
about weights, tokens or who decides what is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.errors import CapacityError, ModelError
from engine.models.base import Placement

# Model types of transformers that keep a recurrent or convolutional state beside or instead of keys and values.
RECURRENT_TYPES = frozenset(
    "bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 lfm2_moe mamba mamba2 minimax "
    "nemotron_h olmo_hybrid plamo2 qwen3_next qwen3_5 qwen3_5_moe recurrent_gemma rwkv xlstm zamba zamba2".split()
)
RECURRENT_FIELDS = ("mamba_", "ssm_", "linear_num_", "linear_conv_", "conv_L_cache", "lru_width", "rwkv_")
LAYER_FIELDS = ("layer_types", "layers_block_type", "block_types")
FULL_ATTENTION = frozenset({"full_attention", "attention"})


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The sizes of a cache; the trash column comes on top of `capacity`."""

    layers: int
    rows: int
    kv_heads: int
    capacity: int
    head_dim: int


class TensorSlotCache:
    """Keys and values in one tensor [layers, 2, rows, kv_heads, capacity + 1, head_dim].

    `keys[i]` and `values[i]` are views [rows, kv_heads, capacity + 1, head_dim] of layer i.
    Column `trash` = `capacity` takes the writes of padding.
    """

    def __init__(self, shape: CacheShape, dtype: torch.dtype) -> None:
        self.rows, self.capacity, self.trash = shape.rows, shape.capacity, shape.capacity
        # Zeros, not empty memory: a masked column still enters a product, and 0 * NaN would be NaN.
        self._store = torch.zeros(
            shape.layers, 2, shape.rows, shape.kv_heads, shape.capacity + 1, shape.head_dim, dtype=dtype
        )
        self.keys: tuple[Tensor, ...] = tuple(self._store[layer, 0] for layer in range(shape.layers))
        self.values: tuple[Tensor, ...] = tuple(self._store[layer, 1] for layer in range(shape.layers))

    def write(self, layer: int, rows: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [B, T, kv_heads, head_dim] at `slots` [B, T] of cache rows `rows` [B, 1]."""
        self.keys[layer][rows, :, slots] = keys
        self.values[layer][rows, :, slots] = values

    def commit(self, row: int, source: tuple[int, ...], target: tuple[int, ...]) -> None:
        """Copy columns `source` to `target` in one row, all layers; overlaps read the old content."""
        moves = commit_moves(source, target, self.capacity)
        if moves is None:
            return
        columns = self._store[:, :, row]
        columns[:, :, :, moves.target] = columns[:, :, :, moves.source]


@dataclass(frozen=True, slots=True)
class Moves:
    """Columns to copy: `source[i]` to `target[i]`, [n] int64 each."""

    source: Tensor
    target: Tensor


def commit_moves(source: tuple[int, ...], target: tuple[int, ...], capacity: int) -> Moves | None:
    """The copies that a commit needs; None if every column is already in place.

    Raises:
        CapacityError: the two differ in length, or a column lies outside the cache.
    """
    if len(source) != len(target):
        raise CapacityError(f"commit: {len(source)} source columns for {len(target)} target columns")
    for column in (*source, *target):
        if not 0 <= column < capacity:
            raise CapacityError(f"commit: column {column} is outside the cache (0 to {capacity - 1})")
    pairs = [(a, b) for a, b in zip(source, target, strict=True) if a != b]
    if not pairs:
        return None
    return Moves(torch.tensor([a for a, _ in pairs]), torch.tensor([b for _, b in pairs]))


def cache_rows(placement: Placement) -> Tensor:
    """[B, 1] the cache row of each batch row."""
    return torch.arange(placement.first_row, placement.first_row + placement.tokens.shape[0])[:, None]


def require_capacity(rows: int, capacity: int, context: int) -> None:
    """Refuse a cache that a model cannot fill.

    Raises:
        CapacityError: no row or column, or more columns than the model has positions.
    """
    if rows < 1 or capacity < 1:
        raise CapacityError(f"a cache needs at least one row and one column, not {rows} x {capacity}")
    if capacity > context:
        raise CapacityError(f"a cache of {capacity} columns exceeds the model's context of {context} positions")


def require_rollback(config: Mapping[str, Any], where: str = "config.json") -> None:
    """Refuse a model configuration whose state is more than one key and value per token.

    Args:
        config: the parsed config.json of a text model, as published or as transformers completes it.
        where: the file, for the message.

    Raises:
        ModelError: recurrent, hybrid or chunked state, or a sliding window inside the context; names the field.
    """
    _refuse_recurrent(config, where)
    for field in LAYER_FIELDS:
        strange = {str(kind) for kind in config.get(field) or ()} - FULL_ATTENTION - {"sliding_attention"}
        if strange:
            raise ModelError(
                f"{where}: {field} has {sorted(strange)[0]!r} layers, whose state cannot be rolled back; "
                "use a model with full attention in every layer"
            )
    _refuse_window(config, where)


def _refuse_recurrent(config: Mapping[str, Any], where: str) -> None:
    mend = "its state cannot be rolled back after a rejected token; use a model with full attention in every layer"
    kind = config.get("model_type")
    if kind in RECURRENT_TYPES:
        raise ModelError(f"{where}: model_type {kind!r} keeps a recurrent state; {mend}")
    for field, value in config.items():
        if field.startswith(RECURRENT_FIELDS) and value is not None:
            raise ModelError(f"{where}: {field} declares a recurrent state; {mend}")
    if config.get("attention_chunk_size") is not None and "chunked" in str(config.get("layer_types", "chunked")):
        raise ModelError(f"{where}: attention_chunk_size limits what a token sees; {mend}")


def _refuse_window(config: Mapping[str, Any], where: str) -> None:
    window = config.get("sliding_window")
    if window is None or not _slides(config):
        return
    context = config.get("max_position_embeddings")
    if context is None or window < context:
        raise ModelError(
            f"{where}: sliding_window {window} is smaller than the context ({context}), so old keys are dropped and "
            "cannot be rolled back; use a model with full attention, or set max_position_embeddings to the window"
        )


def _slides(config: Mapping[str, Any]) -> bool:
    """Whether any layer uses the window: by its declared type, else by the fields older files have."""
    kinds = config.get("layer_types")
    if kinds is not None:
        return "sliding_attention" in kinds
    # Qwen files carry a window that is off unless use_sliding_window says otherwise; others have no such switch.
    switched_off = str(config.get("model_type")).startswith("qwen")
    if not config.get("use_sliding_window", not switched_off):
        return False
    first = config.get("max_window_layers")
    return first is None or first < config.get("num_hidden_layers", first + 1)
