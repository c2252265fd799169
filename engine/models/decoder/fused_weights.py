"""The tensors that the lean forward multiplies with, fused from a checkpoint's.

Tensors read from a file may be views of the mapped file. `mapped_weights` fuses a layer when it is asked for and keeps
nothing of it, so that a model whose products have a layout of their own holds its weights once. A mapped file can
change under us; a layer that is fused again therefore has to give the bytes that it gave first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from blake3 import blake3
from torch import Tensor

from engine.core.errors import ModelError
from engine.models.lean_weights import LayerWeights, LeanConfig, LeanWeights
from engine.models.numerics.devices import CPU
from engine.models.numerics.interface import Affine
from engine.models.numerics.ordered.large_pages import own_pages


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """The dtype and device of weights."""

    dtype: torch.dtype
    device: torch.device

    def own(self, *parts: Tensor) -> Tensor:
        """The rows of all parts in a tensor of their own, because a view of a mapped file changes with the file."""
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        on_cpu = self.device == CPU
        rows = own_pages(shape, self.dtype) if on_cpu else torch.empty(shape, dtype=self.dtype, device=self.device)
        return torch.cat([part.detach().to(self.device, self.dtype) for part in parts], out=rows)


@dataclass(frozen=True, slots=True)
class FusedLayers:
    """The layers of a checkpoint, each fused anew whenever it is iterated over.

    Raises:
        ModelError: while iterating, a layer's tensors are no longer those that the first iteration read.
    """

    config: LeanConfig
    tensors: Mapping[str, Tensor]
    kind: WeightFormat
    where: str
    _read: dict[int, bytes] = field(default_factory=dict)

    def __iter__(self) -> Iterator[LayerWeights]:
        """From the first layer to the last."""
        for index, fused in enumerate(_layers(self.config, self.tensors, self.kind)):
            digest = _digest(fused)
            if self._read.setdefault(index, digest) != digest:
                raise ModelError(f"{self.where}: its weights changed after they were loaded; load the model again")
            yield fused


def mapped_weights(config: LeanConfig, tensors: Mapping[str, Tensor], kind: WeightFormat, where: str) -> LeanWeights:
    """Copies of checked tensors; its layers are fused when they are asked for. `where` names the folder."""
    embedding = kind.own(tensors["model.embed_tokens.weight"])
    return LeanWeights(
        embedding=embedding,
        layers=FusedLayers(config, tensors, kind, where),
        norm=kind.own(tensors["model.norm.weight"]),
        head=embedding if config.tied else kind.own(tensors["lm_head.weight"]),
    )


def _layers(config: LeanConfig, tensors: Mapping[str, Tensor], kind: WeightFormat) -> Iterator[LayerWeights]:
    return (_layer(config, tensors, f"model.layers.{index}.", kind) for index in range(config.layers))


def _layer(config: LeanConfig, tensors: Mapping[str, Tensor], prefix: str, kind: WeightFormat) -> LayerWeights:
    def fused(*names: str) -> Affine:
        biases = [tensors[f"{prefix}{name}.bias"] for name in names if f"{prefix}{name}.bias" in tensors]
        return Affine(
            kind.own(*(tensors[f"{prefix}{name}.weight"] for name in names)), kind.own(*biases) if biases else None
        )

    return LayerWeights(
        attention_norm=kind.own(tensors[f"{prefix}input_layernorm.weight"]),
        qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        qk_norm=_qk_norm(config, tensors, prefix, kind),
        out=fused("self_attn.o_proj"),
        ffn_norm=kind.own(tensors[f"{prefix}post_attention_layernorm.weight"]),
        gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
        down=fused("mlp.down_proj"),
    )


def _qk_norm(config: LeanConfig, tensors: Mapping[str, Tensor], prefix: str, kind: WeightFormat) -> Tensor | None:
    if not config.qk_norm:
        return None
    queries = tensors[f"{prefix}self_attn.q_norm.weight"].expand(config.heads, -1)
    keys = tensors[f"{prefix}self_attn.k_norm.weight"].expand(config.kv_heads, -1)
    return kind.own(queries, keys)


def _digest(layer: LayerWeights) -> bytes:
    result = blake3()
    affines = (layer.qkv, layer.out, layer.gate_up, layer.down)
    others = (layer.attention_norm, layer.qk_norm, layer.ffn_norm, *(affine.bias for affine in affines))
    for tensor in (*(affine.weight for affine in affines), *(other for other in others if other is not None)):
        result.update(memoryview(tensor.cpu().view(torch.uint8).numpy()))  # type: ignore[arg-type]  # numpy arrays are buffers
    return result.digest()
