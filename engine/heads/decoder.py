"""A few llama layers that read rows of numbers instead of token ids: the body of a trained head, and an MTP module.

Weights are fused and the keys and values live in a cache of its own, both as in a
model; of a placement, only the positions, columns and visibility are used, not the tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.heads.checkpoint import TensorSpec
from engine.models.cache import CacheShape, TensorSlotCache, aim_at, require_capacity
from engine.models.decoder.lean import SeparateLayers
from engine.models.interface import Placement
from engine.models.lean_weights import LeanConfig, LeanWeights, layer_shapes, rope_frequencies
from engine.models.numerics.devices import moved
from engine.models.numerics.fast import FastNumerics
from engine.models.numerics.interface import Affine, ForwardContext, GrowingRope, HeadSizes, LayerBody, Matrix, Norm
from engine.models.numerics.layouts import flat

Residual = Literal["input", "normed"]


@dataclass(frozen=True, slots=True)
class LayerForm:
    """How one layer reads its input of `len(norms)` chunks, each as wide as the hidden state.

    norms: by chunk the name of its norm before attention (`input_layernorm` in a llama); None leaves the chunk as it
        is. Queries, keys and values are made of all chunks.
    residual: what the attention's output is added to: the last chunk as it came, or after its norm.
    """

    norms: tuple[str | None, ...] = ("input_layernorm",)
    residual: Residual = "input"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A layer's treatment of its input; `norms` are those of the input's chunks."""

    norms: tuple[Norm | None, ...]
    residual: Residual


class Decoder:
    """Layers of a head, in `dtype`, with the arithmetic of the mode `fast`.

    Args:
        config: sizes and rope; `layers` is ignored.
        tensors: by the names of `layer_slots`, under `layers.0.`, `layers.1.` and so on.
        forms: one per layer. Only the first layer's input may have several chunks.
        dtype: of weights and outputs.
    """

    def __init__(
        self,
        config: LeanConfig,
        tensors: Mapping[str, Tensor],
        forms: Sequence[LayerForm],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config, self.dtype = config, dtype
        self.hidden, self.context = config.hidden, config.context
        self._numerics = FastNumerics()
        self._heads = HeadSizes(config.heads, config.kv_heads, config.head_dim, config.context)
        self._rope = GrowingRope(self._numerics, rope_frequencies(config), config.context, dtype)
        self._entries = tuple(self._entry(tensors, f"layers.{i}.", form) for i, form in enumerate(forms))
        bodies = tuple(self._body(tensors, f"layers.{i}.") for i in range(len(forms)))
        self._layers = SeparateLayers(bodies, (), self._numerics, self._heads)
        self._device = next(iter(tensors.values())).device

    def new_cache(self, rows: int, capacity: int) -> TensorSlotCache:
        """An empty cache. Raises CapacityError: `capacity` exceeds the head's context."""
        require_capacity(rows, capacity, self.context)
        config, layers = self.config, len(self._entries)
        shape = CacheShape(layers, rows, config.kv_heads, capacity, config.head_dim, device=self._device)
        return self._numerics.new_cache(shape, self.dtype)

    def forward(self, cache: TensorSlotCache, placement: Placement, inputs: Tensor) -> Tensor:
        """[N, chunks * hidden] -> [N, hidden], before any final norm; writes the placed rows into the cache.

        The rows are those of the placement, batch row by batch row, padding left out.
        """
        layers = self._layers.begin(cache, moved(self._plan(placement), self._device))
        x = inputs.to(self.dtype)
        for index, entry in enumerate(self._entries):
            kept, normed = self._enter(entry, x)
            x = layers.ffn(index, kept + layers.attended(index, normed))
        return x

    def _plan(self, placement: Placement) -> ForwardContext:
        return ForwardContext(
            tokens=flat(placement.tokens, placement),
            aim=aim_at(placement),
            rope=self._rope.at(flat(placement.positions, placement)),
            layout=self._numerics.layout(placement, self._heads, self.dtype),
        )

    def _enter(self, entry: _Entry, x: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's input [N, hidden] for the residual stream, and [N, chunks * hidden] for its attention."""
        chunks = torch.split(x, self.hidden, 1)
        normed = [chunk if norm is None else norm(chunk) for norm, chunk in zip(entry.norms, chunks, strict=True)]
        kept = normed[-1] if entry.residual == "normed" else chunks[-1]
        return kept, normed[0] if len(normed) == 1 else torch.cat(normed, 1)

    def _entry(self, tensors: Mapping[str, Tensor], prefix: str, form: LayerForm) -> _Entry:
        norms = tuple(None if name is None else self._norm(tensors, f"{prefix}{name}") for name in form.norms)
        return _Entry(norms, form.residual)

    def _norm(self, tensors: Mapping[str, Tensor], name: str) -> Norm:
        return self._numerics.norm(tensors[f"{name}.weight"].to(self.dtype), self.config.eps, self.hidden)

    def _body(self, tensors: Mapping[str, Tensor], prefix: str) -> LayerBody:
        def fused(*names: str) -> Matrix:
            biases = [tensors[f"{prefix}{name}.bias"] for name in names if f"{prefix}{name}.bias" in tensors]
            weight = torch.cat([tensors[f"{prefix}{name}.weight"] for name in names]).to(self.dtype)
            return self._numerics.matrix(Affine(weight, torch.cat(biases).to(self.dtype) if biases else None))

        return LayerBody(
            qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            qk_norm=self._qk_norm(tensors, prefix) if self.config.qk_norm else None,
            out=fused("self_attn.o_proj"),
            ffn_norm=self._norm(tensors, f"{prefix}post_attention_layernorm"),
            gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
            down=fused("mlp.down_proj"),
        )

    def _qk_norm(self, tensors: Mapping[str, Tensor], prefix: str) -> Norm:
        queries = tensors[f"{prefix}self_attn.q_norm.weight"].expand(self.config.heads, -1)
        keys = tensors[f"{prefix}self_attn.k_norm.weight"].expand(self.config.kv_heads, -1)
        weight = torch.cat([queries, keys]).to(self.dtype)
        return self._numerics.norm(weight, self.config.eps, self.config.head_dim)


def layer_slots(config: LeanConfig, published: str, ours: str, form: LayerForm) -> list[TensorSpec]:
    """The tensors of one layer: `published` and `ours` are the prefixes of their names, as in "layers.0."."""
    shapes = layer_shapes(config, [name for name in form.norms if name is not None], len(form.norms))
    return [TensorSpec(f"{published}{name}", f"{ours}{name}", shape) for name, shape in shapes.items()]


class MtpModule:
    """One multi-token prediction (MTP) module: h' = Layer(project(cat[norm(embedding), norm(state)])), then a norm.

    It runs over its own tensors and, where it has none, the target's embedding and head. The embedding comes first.
    What a module returns is normed once: the head reads it, and so does the next module or step. Source: DeepSeek-V3,
    arXiv 2412.19437, section 2.2; the order and the norms are those of its published weights.

    Args:
        config: of the module: sizes, rope, epsilon.
        tensors: by the names of `engine.heads.formats.mtp`, without `modules.K.`.
        target: whose dtype the module takes.
    """

    def __init__(self, config: LeanConfig, tensors: Mapping[str, Tensor], target: LeanWeights) -> None:
        numerics, dtype = FastNumerics(), target.embedding.dtype
        self._embedding = tensors.get("embedding", target.embedding).to(dtype)
        self._embedding_norm = numerics.norm(tensors["embedding_norm"].to(dtype), config.eps, config.hidden)
        self._hidden_norm = numerics.norm(tensors["hidden_norm"].to(dtype), config.eps, config.hidden)
        self._project = numerics.matrix(Affine(tensors["project"].to(dtype), None))
        self._decoder = Decoder(config, tensors, (LayerForm(),), dtype)
        self._norm = numerics.norm(tensors["norm"].to(dtype), config.eps, config.hidden)
        self._head = numerics.matrix(Affine(tensors.get("head", target.head).to(dtype), None))

    def new_cache(self, rows: int, capacity: int) -> TensorSlotCache:
        """An empty cache of the module's layer. Raises CapacityError: `capacity` exceeds the module's context."""
        return self._decoder.new_cache(rows, capacity)

    def forward(self, cache: TensorSlotCache, placement: Placement, states: Tensor) -> Tensor:
        """[N, H] states with the placement's tokens -> [N, H] after the norm.

        Position t holds the state after token t and token t + 1; the embedding at position 0 is zero, as in the
        models' training.
        """
        device = self._embedding.device
        embedded = F.embedding(flat(placement.tokens, placement).to(device), self._embedding)
        first = flat(placement.positions, placement).to(device).unsqueeze(1) == 0
        both = [self._embedding_norm(embedded.masked_fill(first, 0.0)), self._hidden_norm(states.to(embedded.dtype))]
        return self._norm(self._decoder.forward(cache, placement, self._project(torch.cat(both, 1))))

    def logits(self, normed: Tensor) -> Tensor:
        """[N, H] from `forward` -> [N, V]."""
        return self._head(normed)
