"""Our own forward for llama, qwen2 and qwen3: plain functions over plain tensors.

About twice as fast as the module tree of transformers on small models, where dispatch is most of the time, and short
enough to be read whole. All arithmetic is that of a numerics mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.core.errors import InvalidRequest
from engine.models import lean_weights
from engine.models.cache import CacheShape, CacheViews, TensorSlotCache, aim_at, require_capacity
from engine.models.decoder.fused_weights import WeightFormat, mapped_weights
from engine.models.decoder.step_graphs import StepGraphs, completed_step, graphs_on, is_step
from engine.models.files.folder import ModelFolder, read_tensors
from engine.models.interface import Forward, Placement, SlotCache, Sublayers, WantedOutputs
from engine.models.numerics import interface
from engine.models.numerics.devices import moved
from engine.models.numerics.fast import FastNumerics
from engine.models.numerics.layouts import flat, unflat
from engine.models.probe.choose import ModelWithNumerics, choose
from engine.models.probe.model_parts import parts_of


@dataclass(frozen=True, slots=True)
class SeparateLayers:
    """Layers that any mode can run: each product, norm, rotation and attention is one request to the mode.

    attention_norms: one per layer; `attended` does without them.
    """

    layers: Sequence[interface.LayerBody]
    attention_norms: Sequence[interface.Norm]
    numerics: interface.Numerics
    heads: interface.HeadSizes

    def begin(self, cache: TensorSlotCache, step: interface.ForwardContext) -> SeparatePass:
        """Open the cache for this forward's tokens."""
        return SeparatePass(self, cache, step, cache.open(step.aim), self.numerics.windows(cache, step.layout))


@dataclass(frozen=True, slots=True)
class SeparatePass:
    """One forward: `opened` is what it writes of the cache, `windows` what each layer reads."""

    of: SeparateLayers
    cache: TensorSlotCache
    step: interface.ForwardContext
    opened: CacheViews
    windows: Sequence[interface.AttentionWindow]

    def attention(self, index: int, x: Tensor, *, keys_only: bool = False) -> Tensor:
        """Call by call."""
        normed = self.of.attention_norms[index](x)
        if keys_only:
            self._queries(index, normed)
            return x
        return x + self.attended(index, normed)

    def attended(self, index: int, normed: Tensor) -> Tensor:
        """The attention alone [N, hidden] of layer `index`, whose input is normed already."""
        queries = self._queries(index, normed)
        return self.of.layers[index].out(self.of.numerics.attend(queries, self.windows[index], self.step.layout))

    def ffn(self, index: int, x: Tensor) -> Tensor:
        """Call by call."""
        layer = self.of.layers[index]
        return x + layer.down(self.of.numerics.gate(layer.gate_up(layer.ffn_norm(x))))

    def _queries(self, index: int, x: Tensor) -> Tensor:
        """Rotated queries [N, heads, head_dim] of normed input; writes keys and values."""
        layer, heads = self.of.layers[index], self.of.heads
        turned = heads.heads + heads.kv_heads
        qkv = layer.qkv(x).view(-1, turned + heads.kv_heads, heads.head_dim)
        queries_keys, values = torch.split(qkv, [turned, heads.kv_heads], 1)
        if layer.qk_norm is not None:
            queries_keys = layer.qk_norm(queries_keys)
        rotated = self.of.numerics.rotate(queries_keys, self.step.rope)
        queries, keys = torch.split(rotated, [heads.heads, heads.kv_heads], 1)
        self.cache.write(index, self.opened, keys, values)
        return queries


class LeanModel:
    """A `TargetModel` over fused weights, which ask for no gradients.

    Hidden states follow HF's `hidden_states`: 0 is the embedding, i the output of
    layer i, and the last id is taken after the final norm.
    """

    def __init__(
        self,
        config: lean_weights.LeanConfig,
        weights: lean_weights.LeanWeights,
        eos_ids: tuple[int, ...] = (),
        facts: Mapping[str, Any] | None = None,
        numerics: interface.Numerics | None = None,
        graphs: StepGraphs | None = None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.vocabulary = config.vocabulary
        self.context = config.context
        self.eos_ids = eos_ids
        self.facts: Mapping[str, Any] = dict(facts or {})
        self.numerics = numerics or FastNumerics()
        self._graphs = graphs
        self.heads = interface.HeadSizes(config.heads, config.kv_heads, config.head_dim, config.context)
        frequencies = lean_weights.rope_frequencies(config)
        self._rope = interface.GrowingRope(self.numerics, frequencies, config.context, self.dtype)
        layers = tuple(prepare(layer, config, self.numerics) for layer in weights.layers)
        self._separate = SeparateLayers(layers, [layer.attention_norm for layer in layers], self.numerics, self.heads)
        self._joined = self.numerics.joined(layers, self.heads)
        self._norm = self.numerics.norm(weights.norm, config.eps, config.hidden)
        self._head = self.numerics.matrix(interface.Affine(weights.head, None))
        self._whole = Sublayers(tuple(range(config.layers)), tuple(range(config.layers)))

    @property
    def divisible(self) -> int:
        """Every layer's sublayers can be left out."""
        return self.config.layers

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and logits."""
        return self.weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        """The device of weights, caches and logits."""
        return self.weights.embedding.device

    def new_cache(self, rows: int, capacity: int) -> TensorSlotCache:
        """An empty cache. Raises CapacityError: `capacity` exceeds the model's context."""
        require_capacity(rows, capacity, self.context)
        config = self.config
        shape = CacheShape(config.layers, rows, config.kv_heads, capacity, config.head_dim, device=self.device)
        return self.numerics.new_cache(shape, self.dtype)

    def forward(self, cache: SlotCache, placement: Placement, want: WantedOutputs) -> Forward:
        """Write the placed tokens into the cache and return the wanted outputs.

        Raises:
            InvalidRequest: the wanted part names a layer that the model does not have.
        """
        if not isinstance(cache, TensorSlotCache):
            raise TypeError(f"a lean model needs the cache of its new_cache, not {type(cache).__name__}")
        for index in () if want.part is None else (*want.part.attention, *want.part.ffn):
            if not 0 <= index < self.config.layers:
                last = self.config.layers - 1
                raise InvalidRequest(f"a part names layer {index}, but the model's layers are 0 to {last}")
        if self._graphs is None or not is_step(placement, want):
            return self._compute(cache, moved(self._plan(placement), self.device), want)
        width, whole = placement.tokens.shape[1], completed_step(placement, cache.capacity)
        answer = self._graphs.run(cache, self._plan(whole), want, lambda step: self._compute(cache, step, want))
        return narrowed(answer, width)

    def _compute(self, cache: TensorSlotCache, step: interface.ForwardContext, want: WantedOutputs) -> Forward:
        """A forward's arithmetic, on the model's device."""
        config, placement = self.config, step.layout.placement
        part = want.part or self._whole
        layers = self._begin(cache, step)
        x = F.embedding(step.tokens, self.weights.embedding)
        hidden = {0: x} if 0 in want.hidden else {}
        unread = not want.logits and config.layers not in want.hidden
        for index in range(config.layers):
            # of the last layer a prompt needs the keys and values only
            last = unread and index + 1 == config.layers
            if index in part.attention:
                x = layers.attention(index, x, keys_only=last)
            if index in part.ffn and not last:
                x = layers.ffn(index, x)
            if index + 1 in want.hidden:
                hidden[index + 1] = x.to(self.dtype)
        if want.logits or config.layers in want.hidden:
            x = self._norm(x.to(self.dtype))
        if config.layers in want.hidden:
            hidden[config.layers] = x
        logits = unflat(self._head(x), placement) if want.logits else None
        return Forward(logits, {index: unflat(rows, placement) for index, rows in hidden.items()})

    def _begin(self, cache: TensorSlotCache, step: interface.ForwardContext) -> interface.LayerPass:
        """A forward through the joined layers if it can run so."""
        joined = None if self._joined is None else self._joined.begin(cache, step)
        return joined or self._separate.begin(cache, step)

    def _plan(self, placement: Placement) -> interface.ForwardContext:
        """The data of a placement that the layers share, on the host."""
        positions = flat(placement.positions, placement)
        return interface.ForwardContext(
            tokens=flat(placement.tokens, placement),
            aim=aim_at(placement),
            rope=self._rope.at(positions),
            layout=self.numerics.layout(placement, self.heads, self.dtype),
        )


def narrowed(answer: Forward, width: int) -> Forward:
    """The first `width` places of every row."""
    logits = None if answer.logits is None else answer.logits[:, :width]
    return Forward(logits, {layer: states[:, :width] for layer, states in answer.hidden.items()})


def prepare(
    layer: lean_weights.LayerWeights, config: lean_weights.LeanConfig, numerics: interface.Numerics
) -> interface.DecoderLayer:
    """A layer's norms and matrices as a mode computes them."""
    eps, hidden = config.eps, config.hidden
    return interface.DecoderLayer(
        attention_norm=numerics.norm(layer.attention_norm, eps, hidden),
        qkv=numerics.matrix(layer.qkv),
        qk_norm=None if layer.qk_norm is None else numerics.norm(layer.qk_norm, eps, config.head_dim),
        out=numerics.matrix(layer.out),
        ffn_norm=numerics.norm(layer.ffn_norm, eps, hidden),
        gate_up=numerics.matrix(layer.gate_up),
        down=numerics.matrix(layer.down),
    )


def load_folder(
    folder: ModelFolder, dtype: torch.dtype, facts: Mapping[str, Any], numerics: str = "fast"
) -> ModelWithNumerics:
    """The model in a folder of config.json and safetensors, with a numerics mode or `auto`.

    Raises:
        ModelError: the configuration is not supported or the tensors do not fit it.
        NumericsRefused: the requested mode does not hold on this machine.
    """
    config = lean_weights.read_config(folder.config, folder.name("config.json"))
    tensors = read_tensors(folder)
    lean_weights.check_tensors(config, tensors, folder.name())
    device = torch.device(facts.get("device", "cpu"))
    weights = mapped_weights(config, tensors, WeightFormat(dtype, device), folder.name())
    choice = choose(numerics, parts_of(config, weights), folder.name())
    model = LeanModel(config, weights, folder.eos_ids, facts, choice.numerics, graphs_on(device))
    return ModelWithNumerics(model, choice.facts)
