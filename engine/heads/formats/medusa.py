"""Medusa (Cai et al. 2401.10774): the layouts in which its heads are published.

There are three dialects of names, which the tensors distinguish: that of vLLM, that of the first
Medusa release, and that of its later one, where the heads lie in the base model's
folder. The tensors determine the numbers of heads and layers; a configuration that contradicts them is an error.

Our names: `block.{h}.{l}.weight` [H, H], `block.{h}.{l}.bias` [H] (optional),
`head.{h}.weight` [V', H], `token_map` [V'] (optional).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from engine.core.errors import ModelError
from engine.heads.checkpoint import CheckpointLayout, HeadCheckpoint, TensorSpec, take
from engine.models.files.folder import ModelFolder, read_tensors

PREFIXES: Final = ("medusa_head.", "medusa_heads.")
"""Before every name of the heads; in the base model's folder, or in a wrapper's."""
BASE: Final = ("model.", "lm_head.")
"""Prefixes of a base model's own tensors."""


@dataclass(frozen=True, slots=True)
class MedusaDialect:
    """The names of tensors, and the keys of config.json that count them.

    block: pattern of a layer's weight. head: name of an output matrix, where {n} is the number of layers.
    """

    block: str
    bias: str
    head: str
    pattern: re.Pattern[str]
    heads_key: str
    layers_key: str


VLLM: Final = MedusaDialect(
    block="blocks.{h}.layers.{l}.weight",
    bias="blocks.{h}.layers.{l}.bias",
    head="lm_heads.{h}.weight",
    pattern=re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.weight"),
    heads_key="num_heads",
    layers_key="num_hidden_layers",
)
RELEASE: Final = MedusaDialect(
    block="{h}.{l}.linear.weight",
    bias="{h}.{l}.linear.bias",
    head="{h}.{n}.weight",
    pattern=re.compile(r"(\d+)\.(\d+)\.linear\.weight"),
    heads_key="medusa_num_heads",
    layers_key="medusa_num_layers",
)


@dataclass(frozen=True, slots=True)
class MedusaShape:
    """Facts read from the tensors: names' prefix and dialect, counts, hidden size, rows of an output matrix."""

    dialect: MedusaDialect
    prefix: str
    heads: int
    layers: int
    hidden: int
    rows: int

    def name(self, template: str, head: int, layer: int = 0) -> str:
        """A published name."""
        return self.prefix + template.format(h=head, l=layer, n=self.layers)


def matches(config: Mapping[str, Any]) -> bool:
    """Whether a config.json announces Medusa heads."""
    named = "MedusaModel" in (config.get("architectures") or ()) or config.get("model_type") == "medusa"
    return named or RELEASE.heads_key in config


def read(folder: ModelFolder) -> HeadCheckpoint:
    """The heads in a folder.

    Raises:
        ModelError: a tensor is missing, unexpected, misshapen or of the wrong type; counts or sizes that disagree.
    """
    where, config = folder.name(), folder.config
    tensors = read_tensors(folder)
    shape = _shape(tensors, config, where)
    _require_counts(shape, config, where)
    if shape.prefix:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(BASE)}
    if config.get("original_lm_head"):
        tensors = _with_shared_head(tensors, shape, where)
    result = take(tensors, _slots(shape, tensors, config), where)
    _require_types(result, where)
    vocabulary = _vocabulary(config, shape)
    settings = {
        "heads": shape.heads,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "vocabulary": vocabulary,
        "logit_scale": float(config.get("logit_scale", 1.0)),
    }
    return HeadCheckpoint("medusa", "medusa", config, _mapped(result, shape, vocabulary, where), settings)


def _shape(tensors: Mapping[str, Tensor], config: Mapping[str, Any], where: str) -> MedusaShape:
    """Names and sizes as the tensors have them; the first head's are taken for all."""
    prefix = next((item for item in PREFIXES if any(name.startswith(item) for name in tensors)), "")
    own = [name.removeprefix(prefix) for name in tensors if name.startswith(prefix)]
    dialect = VLLM if any(name.startswith("blocks.") for name in own) else RELEASE
    places = [match for match in map(dialect.pattern.fullmatch, own) if match]
    if not places:
        raise ModelError(f"{where}: no tensor {prefix}{VLLM.block} or {prefix}{RELEASE.block}; is this a Medusa head?")
    heads, layers = (1 + max(int(place[group]) for place in places) for group in (1, 2))
    bare = MedusaShape(dialect, prefix, heads, layers, 0, 0)
    shared = ("lm_head.weight",) if config.get("original_lm_head") else ()
    candidates = [*(prefix + name for name in shared), bare.name(dialect.head, 0)]
    output = next((tensors[name] for name in candidates if name in tensors), None)
    if output is None or output.dim() != 2:
        raise ModelError(f"{where}: tensor {candidates[-1]!r} is missing or no matrix; restore the checkpoint")
    return MedusaShape(dialect, prefix, heads, layers, output.shape[1], output.shape[0])


def _require_counts(shape: MedusaShape, config: Mapping[str, Any], where: str) -> None:
    """Published configurations have stated 2 for 5 heads, so both sides are compared."""
    counts = (
        (shape.dialect.heads_key, shape.heads, "heads"),
        (shape.dialect.layers_key, shape.layers, "layers per head"),
        ("hidden_size", shape.hidden, "columns per output matrix"),
    )
    for key, result, what in counts:
        if config.get(key, result) != result:
            raise ModelError(
                f"{where}: config.json says {key} {config[key]}, but the tensors have {result} {what}; "
                "correct config.json"
            )


def _vocabulary(config: Mapping[str, Any], shape: MedusaShape) -> int:
    """Size of the target's vocabulary; the release's own configurations may lack it."""
    return int(config.get("vocab_size") or shape.rows)


def _slots(shape: MedusaShape, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> list[TensorSpec]:
    hidden, dialect = shape.hidden, shape.dialect
    biased = dialect is RELEASE or bool(config.get("medusa_fc_bias", False))
    slots = []
    for h in range(shape.heads):
        for layer in range(shape.layers):
            name = f"block.{h}.{layer}"
            slots.append(TensorSpec(shape.name(dialect.block, h, layer), f"{name}.weight", (hidden, hidden)))
            if biased:
                slots.append(TensorSpec(shape.name(dialect.bias, h, layer), f"{name}.bias", (hidden,)))
        slots.append(TensorSpec(shape.name(dialect.head, h), f"head.{h}.weight", (shape.rows, hidden)))
    known = tensors.get(f"{shape.prefix}token_map")
    vocabulary = _vocabulary(config, shape)
    truncated = int(config.get("truncated_vocab_size") or min(vocabulary, shape.rows))
    size = (truncated,) if known is None or truncated < vocabulary else tuple(known.shape)
    return [*slots, TensorSpec(f"{shape.prefix}token_map", "token_map", size, optional=truncated >= vocabulary)]


def _with_shared_head(tensors: Mapping[str, Tensor], shape: MedusaShape, where: str) -> dict[str, Tensor]:
    """One output matrix under every head's name, stored once or as copies; raises ModelError: matrices that differ."""
    names = [shape.name(shape.dialect.head, h) for h in range(shape.heads)]
    stored = [name for name in (f"{shape.prefix}lm_head.weight", *names) if name in tensors]
    first = tensors[stored[0]]
    other = next((name for name in stored if not torch.equal(tensors[name], first)), None)
    if other is not None:
        raise ModelError(
            f"{where}: config.json says original_lm_head, but {other!r} is not {stored[0]!r}; "
            "set original_lm_head to false"
        )
    return {**{name: tensors[name] for name in tensors if name not in stored}, **dict.fromkeys(names, first)}


def _require_types(tensors: Mapping[str, Tensor], where: str) -> None:
    for name, tensor in tensors.items():
        whole = not tensor.is_floating_point() and tensor.dtype is not torch.bool
        if whole != (name == "token_map"):
            wanted = "whole numbers" if name == "token_map" else "plain floats"
            raise ModelError(f"{where}: the tensor of {name} is {tensor.dtype}, not {wanted}; restore the checkpoint")


def _mapped(tensors: dict[str, Tensor], shape: MedusaShape, vocabulary: int, where: str) -> dict[str, Tensor]:
    """Without a map that leaves nothing out; with one, output matrices of its rows only; raises ModelError: a map that
    names a token twice or none of the vocabulary, or output matrices of another size.
    """
    tokens = tensors.pop("token_map", None)
    if tokens is None or len(tokens) >= vocabulary:
        if shape.rows != vocabulary:
            raise ModelError(
                f"{where}: config.json says vocab_size {vocabulary}, but the output matrices have {shape.rows} rows"
            )
        return tensors
    tokens = tokens.long()
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocabulary or len(set(tokens.tolist())) != len(tokens):
        raise ModelError(f"{where}: token_map must name tokens from 0 to {vocabulary - 1}, each once")
    if shape.rows not in (len(tokens), vocabulary):
        raise ModelError(f"{where}: token_map has {len(tokens)} tokens, but the output matrices have {shape.rows} rows")
    if shape.rows == vocabulary:
        tensors |= {name: item[tokens] for name, item in tensors.items() if name.startswith("head.")}
    return {**tensors, "token_map": tokens}


LAYOUT: Final = CheckpointLayout("medusa", matches, read)
