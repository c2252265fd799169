"""Any unmodified causal language model of transformers behind the model protocol.

The model keeps its own forward; only the cache is ours. Each placed token is
written to the column that the placement names, and an additive float mask restricts each query. (A bool mask of four
dimensions is silently wrong with eager attention.) Loading checks that a model honours both.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.cache_utils import Cache, CacheLayerMixin

from engine.core.errors import InvalidRequest, ModelError
from engine.models.cache import cache_rows, commit_moves, require_capacity, require_rollback
from engine.models.files.folder import ModelFolder
from engine.models.files.transformers_loader import load_whole
from engine.models.interface import Forward, Placement, SlotCache, WantedOutputs, chain_placement

PROBE = 5  # tokens: a root of two and two branches
# Largest deviation that rounding explains, as a share of the largest logit: ignored masks or positions give 0.1 to 1.
ROUNDING = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 5e-2}


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is not typed for mypy
    """Keys and values of one layer, [rows, heads, capacity + 1, head_dim] each, allocated at the first write."""

    is_sliding = False

    def __init__(self, owner: HfSlotCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate for all of the cache's rows, at the first write [B, heads, T, head_dim] of any batch size."""
        columns = self.owner.capacity + 1
        # Zeros, not empty memory: a masked column still enters a product, and 0 * NaN would be NaN.
        self.keys = key_states.new_zeros(self.owner.rows, key_states.shape[1], columns, key_states.shape[3])
        self.values = value_states.new_zeros(self.owner.rows, value_states.shape[1], columns, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write at the current placement's slots; return the columns that it may see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, placement = self.owner.batch_rows, self.owner.placement
        self.keys[rows, :, placement.slots] = key_states.transpose(1, 2)
        self.values[rows, :, placement.slots] = value_states.transpose(1, 2)
        first, span = placement.first_row, placement.visible.shape[2]
        window = (slice(first, first + len(rows)), slice(None), slice(span))
        return self.keys[window], self.values[window]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - transformers' signature
        """Key length and offset of the mask."""
        return self.owner.placement.span, 0

    def get_seq_length(self) -> int:
        """0: positions and mask are always given, so nothing may be derived from a length."""
        return 0

    def get_max_length(self) -> int:
        """Number of usable columns."""
        return self.owner.capacity


class HfSlotCache(Cache):  # type: ignore[misc]  # transformers is not typed for mypy
    """A transformers cache that is also a `SlotCache`; `aim` names the placement that the next forward writes."""

    def __init__(self, layers: int, rows: int, capacity: int) -> None:
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])
        self.rows, self.capacity, self.trash = rows, capacity, capacity

    def aim(self, placement: Placement) -> None:
        """Set the places of the next forward's keys and values."""
        self.placement = placement
        self.batch_rows = cache_rows(placement)

    def commit(self, row: int, source: tuple[int, ...], target: tuple[int, ...]) -> None:
        """Copy columns `source` to `target` in one row, all layers; overlaps read the old content."""
        moves = commit_moves(source, target, self.capacity)
        if moves is None:
            return
        read, written = moves
        for layer in self.layers:
            for columns in (layer.keys[row], layer.values[row]):
                columns[:, written] = columns[:, read]


class HfModel:
    """A `TargetModel` around a transformers causal language model, in evaluation mode and without autograd.

    Hidden states are transformers' own `hidden_states`: 0 is the embedding, i the
    output of layer i, and the last id is taken after the final norm.

    Raises:
        ModelError: tokens shall be `placed` at will, and the model's state cannot be rolled back, or it does not
            honour masks and positions.
    """

    def __init__(
        self,
        network: Any,
        eos_ids: tuple[int, ...] = (),
        facts: Mapping[str, Any] | None = None,
        where: str = "config.json",
        *,
        placed: bool = True,
    ) -> None:
        config, taken = network.config.get_text_config(), inspect.signature(network.forward).parameters
        if placed:
            require_rollback(config.to_dict(), where)
            if "position_ids" not in taken:
                raise ModelError(
                    f"{where}: {type(network).__name__} takes no position_ids, so tokens cannot be placed; "
                    "use a model with rotary or learned positions"
                )
        if not getattr(config, "max_position_embeddings", None):
            raise ModelError(f"{where}: max_position_embeddings is missing; add the context length")
        self.network = network.eval()
        # transformers has renamed it, and warns of the older name
        self.cache_name = "cache" if "cache" in taken else "past_key_values"
        self.layers: int = config.num_hidden_layers
        self.vocabulary: int = _head_size(network, where)
        self.context: int = config.max_position_embeddings
        self.eos_ids = eos_ids
        self.facts: Mapping[str, Any] = dict(facts or {})
        if placed:
            require_honest_masks(self, where)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, cache and logits."""
        dtype: torch.dtype = self.network.dtype
        return dtype

    @property
    def divisible(self) -> int:
        """0: the network's own forward runs all layers."""
        return 0

    def new_cache(self, rows: int, capacity: int) -> HfSlotCache:
        """An empty cache. Raises CapacityError: `capacity` exceeds the model's context."""
        require_capacity(rows, capacity, self.context)
        return HfSlotCache(self.layers, rows, capacity)

    def arguments(self, cache: HfSlotCache, placement: Placement) -> dict[str, Any]:
        """A placement in transformers' own terms; aims the cache at it."""
        cache.aim(placement)
        return {
            "input_ids": placement.tokens,
            "attention_mask": float_mask(placement.visible, self.dtype),
            "position_ids": placement.positions,
            self.cache_name: cache,
            "use_cache": True,
        }

    @torch.no_grad()
    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        """Write the placed tokens into the cache and return the wanted outputs.

        Raises:
            InvalidRequest: a part of the model is wanted.
        """
        if not isinstance(cache, HfSlotCache):
            raise TypeError(f"a transformers model needs the cache of its new_cache, not {type(cache).__name__}")
        if want.part is not None:
            raise InvalidRequest("a transformers model runs whole only; use loader: lean")
        network = self.network if want.logits else self.network.base_model
        answer = network(**self.arguments(cache, placement), output_hidden_states=bool(want.hidden))
        hidden = {index: answer.hidden_states[index] for index in want.hidden}
        return Forward(answer.logits if want.logits else None, hidden)


def float_mask(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, T, S] additive: 0 where visible, the dtype's lowest number elsewhere, as transformers itself does."""
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min).unsqueeze(1)


def _head_size(network: Any, where: str) -> int:
    head = network.get_output_embeddings()
    if head is None:
        raise ModelError(f"{where}: {type(network).__name__} has no language model head; use a causal language model")
    return int(head.weight.shape[0])


def require_honest_masks(model: HfModel, where: str) -> None:
    """Place five tokens as two branches in odd columns and compare the result with plain forwards.

    Raises:
        ModelError: masks, positions or columns are not honoured.
    """
    kind = type(model.network).__name__
    if model.context < PROBE:
        raise ModelError(f"{where}: max_position_embeddings is {model.context}; {PROBE} or more are needed")
    try:
        error = _placement_error(model)
    except Exception as cause:  # models raise arbitrary exceptions for an unforeseen mask or cache
        reason = " ".join(str(cause).split())[:200]
        raise ModelError(f"{where}: {kind} cannot run on placed tokens ({reason}); use another model") from cause
    if not error <= ROUNDING[model.dtype]:
        raise ModelError(
            f"{where}: {kind} gives other logits for placed tokens (off by {error:.2g} of the largest): it ignores "
            "masks, positions or cache columns; use another model"
        )


@torch.no_grad()
def _placement_error(model: HfModel) -> float:
    """Largest deviation of placed from plain logits, as a share of the largest plain logit."""
    tokens = torch.arange(PROBE) % model.vocabulary
    cache = model.new_cache(2, PROBE)
    model.forward(cache, chain_placement([[0], tokens[:2].tolist()], [0, 0], cache.trash), WantedOutputs(logits=False))
    placed = model.network(**model.arguments(cache, _branches(tokens))).logits[0, [2, 1]]
    paths = ([0, 1, 2, 4], [0, 1, 3])
    plain = torch.stack([model.network(input_ids=tokens[path][None], use_cache=False).logits[0, -1] for path in paths])
    return float((placed - plain).abs().max() / plain.abs().max())


def _branches(tokens: Tensor) -> Placement:
    """After tokens 0 and 1 in row 1: branch (2, 4) in columns 4 and 2, branch (3) in column 3."""
    visible = torch.zeros(1, 3, 5, dtype=torch.bool)
    visible[0, :, :2] = True
    visible[0, 0, 4] = visible[0, 1, 3] = visible[0, 2, 4] = visible[0, 2, 2] = True
    positions, slots = torch.tensor([[2, 2, 3]]), torch.tensor([[4, 3, 2]])
    return Placement(tokens[2:][None], positions, slots, (3,), 5, visible, first_row=1)


def load_folder(folder: ModelFolder, dtype: torch.dtype, facts: Mapping[str, Any], *, placed: bool = True) -> HfModel:
    """The model in a folder, by transformers' own loading; code from the folder is never run.

    `placed` is false for a network whose forward alone is used, which may keep any state.

    Raises:
        ModelError: transformers cannot load it whole, or it does not fit the protocol.
    """
    if placed:
        require_rollback(folder.config.get("text_config") or folder.config, folder.name("config.json"))
    network = load_whole(folder, AutoModelForCausalLM, dtype, "causal language model")
    return HfModel(network, folder.eos_ids, facts, folder.name("config.json"), placed=placed)
