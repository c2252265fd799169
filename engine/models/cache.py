"""Key and value storage addressed by columns, and the refusal of state that cannot be rolled back.

Rejected tokens need no removal: their columns are overwritten by the next step. That works only for models whose whole
state is one key and one value per token, which is what `require_rollback` asks of a configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.core.errors import CapacityError, ModelError
from engine.models.interface import Placement

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
    """The sizes of a cache.

    columns: how many are allocated: at least `capacity` and the trash column; 0 means just those.
    value_dim: width of a value; 0 means `head_dim`.
    device: where the tensors live.
    """

    layers: int
    rows: int
    kv_heads: int
    capacity: int
    head_dim: int
    columns: int = 0
    value_dim: int = 0
    device: torch.device | None = None


@dataclass(frozen=True, slots=True)
class WriteSlots:
    """The destination of one forward's N placed tokens: index tensors [N], or one run of columns in one row."""

    rows: Tensor
    slots: Tensor
    run: slice | None
    """The columns, if all tokens go to consecutive columns of row `row`."""
    row: int = 0


@dataclass(frozen=True, slots=True)
class CacheViews:
    """One forward's places in every layer's keys and values: views to copy into, or rows to write by index."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    """Per layer [kv_heads, N, ...], or [all rows, ...] where there is an index."""
    index: Tensor | None
    """[N * kv_heads] which rows."""


class TensorSlotCache:
    """Keys [layers, rows, kv_heads, columns, head_dim] and values [..., value_dim], in two tensors.

    `keys[i]` and `values[i]` are views [rows, kv_heads, columns, ...] of layer i.
    Column `trash` = `capacity` takes the writes of padding. If `value_dim` exceeds `head_dim`, numbers after the first
    `head_dim` of a value are never overwritten.
    """

    def __init__(self, shape: CacheShape, dtype: torch.dtype) -> None:
        self.rows, self.capacity, self.trash = shape.rows, shape.capacity, shape.capacity
        self._width = shape.head_dim
        sizes = (shape.layers, shape.rows, shape.kv_heads, max(shape.columns, shape.capacity + 1))
        width = shape.value_dim or shape.head_dim
        # Zeros, not empty memory: a masked column still enters a product, and 0 * NaN would be NaN.
        self.all_keys = torch.zeros(*sizes, shape.head_dim, dtype=dtype, device=shape.device)
        self.all_values = torch.zeros(*sizes, width, dtype=dtype, device=shape.device)
        self.keys: tuple[Tensor, ...] = tuple(self.all_keys)
        self.values: tuple[Tensor, ...] = tuple(self.all_values)

    def open(self, aim: WriteSlots) -> CacheViews:
        """Prepare one forward's writes, for all layers at once."""
        if aim.run is not None:
            keys = self.all_keys[:, aim.row, :, aim.run]
            values = self.all_values[:, aim.row, :, aim.run, : self._width]
            return CacheViews(keys.unbind(), values.unbind(), None)
        _, _, heads, columns, _ = self.all_keys.shape
        first = (aim.rows[:, None] * heads + torch.arange(heads, device=aim.rows.device)) * columns
        index = (first + aim.slots[:, None]).flatten()
        keys, values = self.all_keys.flatten(1, 3), self.all_values.flatten(1, 3)
        return CacheViews(keys.unbind(), values[..., : self._width].unbind(), index)

    def write(self, layer: int, opened: CacheViews, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [N, kv_heads, head_dim] at this forward's places."""
        if opened.index is None:
            opened.keys[layer].copy_(keys.transpose(0, 1))
            opened.values[layer].copy_(values.transpose(0, 1))
            return
        dtype = self.all_keys.dtype
        opened.keys[layer].index_copy_(0, opened.index, keys.flatten(0, 1).to(dtype))
        opened.values[layer].index_copy_(0, opened.index, values.flatten(0, 1).to(dtype))

    def commit(self, row: int, source: tuple[int, ...], target: tuple[int, ...]) -> None:
        """Copy columns `source` to `target` in one row, all layers; overlaps read the old content."""
        moves = commit_moves(source, target, self.capacity)
        if moves is None:
            return
        read, written = moves
        for store in (self.all_keys, self.all_values):
            columns = store[:, row]
            columns[:, :, written.to(store.device)] = columns[:, :, read.to(store.device)]


def commit_moves(source: tuple[int, ...], target: tuple[int, ...], capacity: int) -> tuple[Tensor, Tensor] | None:
    """The columns that a commit copies, and where to, [n] int64 each; None if every column is already in place.

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
    return torch.tensor([a for a, _ in pairs]), torch.tensor([b for _, b in pairs])


def aim_at(placement: Placement) -> WriteSlots:
    """The cache columns of the placed tokens, padding left out."""
    lengths, first = placement.lengths, placement.first_row
    if len(lengths) == 1 and placement.branches is None and placement.real is None:
        start = int(placement.slots[0, 0])
        return WriteSlots(placement.slots[0], placement.slots[0], slice(start, start + lengths[0]), first)
    rows = np.repeat(np.arange(first, first + len(lengths)), lengths)
    slots = np.concatenate([row[:count] for row, count in zip(placement.slots.numpy(), lengths, strict=True)])
    return WriteSlots(torch.from_numpy(rows), torch.from_numpy(slots), None)


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
    """True if any layer uses the window, by its declared type or else by the fields of older files."""
    kinds = config.get("layer_types")
    if kinds is not None:
        return "sliding_attention" in kinds
    # Qwen files carry a window that only use_sliding_window turns on; others have no such switch.
    switched_off = str(config.get("model_type")).startswith("qwen")
    if not config.get("use_sliding_window", not switched_off):
        return False
    first = config.get("max_window_layers")
    return first is None or first < config.get("num_hidden_layers", first + 1)
