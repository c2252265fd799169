"""Reads a published llama, qwen2 or qwen3 checkpoint into the weights of the lean forward.

The reader is strict: a missing, unexpected, misshapen or non-float tensor is an error that names it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.core.errors import ModelError
from engine.models.cache import require_rollback
from engine.models.numerics.interface import Affine
from engine.models.numerics.rotations import frequencies

ARCHITECTURES = ("llama", "qwen2", "qwen3")
PLAIN_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
# Old llama exports store this buffer; it follows from the configuration and is recomputed.
DERIVED_SUFFIX = ".rotary_emb.inv_freq"


@dataclass(frozen=True, slots=True)
class LeanConfig:
    """The part of config.json that decides the computation."""

    architecture: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    context: int
    eps: float
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    rope: Mapping[str, Any]
    """`rope_type`, `rope_theta` and, for llama3, the scaling factors."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; query, key and value as one matrix, gate and up as another.

    `qk_norm` [heads + kv_heads, head_dim] scales the normed queries and keys (qwen3).
    """

    attention_norm: Tensor
    qkv: Affine
    qk_norm: Tensor | None
    out: Affine
    ffn_norm: Tensor
    gate_up: Affine
    down: Affine


@dataclass(frozen=True, slots=True)
class LeanWeights:
    """All tensors of a model in one dtype. `head` is `embedding` itself where the two are tied."""

    embedding: Tensor
    layers: Iterable[LayerWeights]
    norm: Tensor
    head: Tensor


def read_config(document: Mapping[str, Any], where: str) -> LeanConfig:
    """The lean configuration in a parsed config.json.

    Raises:
        ModelError: an architecture, activation, rope type or quantisation that the lean forward lacks; a missing field.
    """
    kind = document.get("model_type")
    if kind not in ARCHITECTURES:
        raise ModelError(
            f"{where}: model_type {kind!r} has no lean forward (only {', '.join(ARCHITECTURES)}); use loader: hf"
        )
    require_rollback(document, where)
    _refuse_variants(document, where)
    heads = _integer(document, "num_attention_heads", where)
    hidden = _integer(document, "hidden_size", where)
    bias = bool(document.get("attention_bias", False))
    return LeanConfig(
        architecture=kind,
        vocabulary=_integer(document, "vocab_size", where),
        hidden=hidden,
        layers=_integer(document, "num_hidden_layers", where),
        heads=heads,
        kv_heads=_divisor(document, heads, where),
        head_dim=_integer(document, "head_dim", where, 128 if kind == "qwen3" else hidden // heads),
        ffn=_integer(document, "intermediate_size", where),
        context=_integer(document, "max_position_embeddings", where),
        eps=float(document.get("rms_norm_eps", 1e-6)),
        tied=bool(document.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2" or bias,
        out_bias=kind != "qwen2" and bias,
        mlp_bias=bool(kind == "llama" and document.get("mlp_bias", False)),
        qk_norm=kind == "qwen3",
        rope=_rope(document, where),
    )


def _divisor(document: Mapping[str, Any], heads: int, where: str) -> int:
    value = _integer(document, "num_key_value_heads", where, heads)
    if heads % value:
        raise ModelError(f"{where}: num_attention_heads {heads} is not a multiple of num_key_value_heads {value}")
    return value


def _integer(document: Mapping[str, Any], field: str, where: str, default: int | None = None) -> int:
    value = default if document.get(field) is None else document[field]
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{where}: {field} must be a positive integer, not {value!r}")
    return value


def _refuse_variants(document: Mapping[str, Any], where: str) -> None:
    activation = document.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"{where}: hidden_act {activation!r} has no lean forward (only silu); use loader: hf")
    if document.get("quantization_config") is not None:
        raise ModelError(f"{where}: quantization_config: quantised weights have no lean forward; use loader: hf")


def _rope(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Files of transformers 5 use rope_parameters, older ones rope_theta and rope_scaling."""
    old = document.get("rope_scaling") or {}
    given = {**old, **(document.get("rope_parameters") or {})}
    rope = {name: value for name, value in given.items() if value is not None}
    rope.setdefault("rope_type", old.get("type", "default"))
    theta = document.get("rope_theta")
    rope.setdefault("rope_theta", 10000.0 if theta is None else theta)
    needed = {
        "default": (),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }
    kind = rope["rope_type"]
    if kind not in needed or rope.get("partial_rotary_factor", 1.0) != 1.0:
        what = f"rope_type {kind!r}" if kind not in needed else "partial_rotary_factor"
        raise ModelError(f"{where}: {what} has no lean forward (only default and llama3); use loader: hf")
    for field in needed[kind]:
        if field not in rope:
            raise ModelError(f"{where}: rope_type {kind!r} needs {field}")
    return rope


def rope_frequencies(config: LeanConfig) -> Tensor:
    """[head_dim / 2] float64 angle per position, the same on every machine.

    Raises:
        ModelError: rope_theta is not above 0.
    """
    if not float(config.rope["rope_theta"]) > 0:
        raise ModelError(f"config.json: rope_theta must be above 0, not {config.rope['rope_theta']!r}")
    return torch.tensor(frequencies(config.head_dim, config.rope), dtype=torch.float64)


def expected_shapes(config: LeanConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this configuration must have, by its published name."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocabulary, config.hidden),
        "model.norm.weight": (config.hidden,),
    }
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocabulary, config.hidden)
    for layer in range(config.layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes(config).items()}
    return shapes


def layer_shapes(
    config: LeanConfig, norms: Iterable[str] = ("input_layernorm",), chunks: int = 1
) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer by name, whose input has so many chunks of the hidden size, under these norms."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    wide = config.hidden * chunks
    matrices = {
        "self_attn.q_proj": (queries, wide, config.qkv_bias),
        "self_attn.k_proj": (keys, wide, config.qkv_bias),
        "self_attn.v_proj": (keys, wide, config.qkv_bias),
        "self_attn.o_proj": (config.hidden, queries, config.out_bias),
        "mlp.gate_proj": (config.ffn, config.hidden, config.mlp_bias),
        "mlp.up_proj": (config.ffn, config.hidden, config.mlp_bias),
        "mlp.down_proj": (config.hidden, config.ffn, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns, bias) in matrices.items():
        shapes |= {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})
    sizes = dict.fromkeys((*norms, "post_attention_layernorm"), config.hidden)
    if config.qk_norm:
        sizes |= {"self_attn.q_norm": config.head_dim, "self_attn.k_norm": config.head_dim}
    return shapes | {f"{name}.weight": (size,) for name, size in sizes.items()}


def check_tensors(config: LeanConfig, tensors: Mapping[str, Tensor], where: str) -> None:
    """Check a checkpoint against its configuration.

    Raises:
        ModelError: names the first tensor that is missing, unexpected, misshapen or not a plain float.
    """
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise ModelError(f"{where}: tensor {missing[0]} is missing ({len(missing)} of {len(expected)} are)")
    for name, tensor in tensors.items():
        if name not in expected:
            if not _is_redundant(name, tensors, config):
                text = f"tensor {name} is unexpected for a {config.architecture} model; use loader: hf"
                raise ModelError(f"{where}: {text}")
        elif tuple(tensor.shape) != expected[name]:
            text = f"tensor {name} has shape {list(tensor.shape)}, config.json asks for {list(expected[name])}"
            raise ModelError(f"{where}: {text}")
        elif tensor.dtype not in PLAIN_FLOATS:
            raise ModelError(f"{where}: tensor {name} is {tensor.dtype}, not a plain float; use loader: hf")


def _is_redundant(name: str, tensors: Mapping[str, Tensor], config: LeanConfig) -> bool:
    """True if an extra tensor is redundant: a stored copy of a tied head, or a derived buffer."""
    if name == "lm_head.weight" and config.tied:
        return torch.equal(tensors[name], tensors["model.embed_tokens.weight"])
    return name.endswith(DERIVED_SUFFIX)
