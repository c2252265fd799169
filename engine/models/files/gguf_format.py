"""The names in a GGUF file, of tensors, kinds of tokens and ways to split a text, and the order of its weights.

llama.cpp turns pairs of neighbours where transformers turns halves of a head, in models of the family llama; the rows
of their queries and keys change places here.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

WHOLE: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
"""Tensors outside the layers."""
LAYER: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Tensors of a layer."""
NORMAL: Final = 1
CONTROL: Final = 3
USER_DEFINED: Final = 4
UNUSED: Final = 5
"""Kinds of tokens, as a GGUF file numbers them."""
NO_MERGE: Final = "[no] [merge]"
"""Stands for none, which llama.cpp's loader refuses: a text begins as single characters, so these parts never occur."""
WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS: Final[Mapping[str, str]] = {WORDS % "{1,3}": "llama-bpe", WORDS % "": "qwen2"}
"""llama.cpp's names of ways to split a text, by their expression."""


def named_tensors(weights: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors by llama.cpp's names. Raises KeyError: a tensor that no model of these families has."""
    heads = _turned_heads(config)
    for name, tensor in weights.items():
        if name in WHOLE:
            yield WHOLE[name], tensor
            continue
        _, _, layer, rest = name.split(".", 3)
        part, _, kind = rest.rpartition(".")
        turned = neighbours(tensor, heads[part]) if part in heads else tensor
        yield f"blk.{layer}.{LAYER[part]}.{kind}", turned


def published_name(name: str) -> str:
    """The name in a model folder of a tensor of a GGUF file; its own if no model of these families has it."""
    names = {theirs: ours for ours, theirs in {**WHOLE, **LAYER}.items()}
    if name in names or not name.startswith("blk."):
        return names.get(name, name)
    _, layer, part, *kind = name.split(".")
    return ".".join(("model.layers", layer, names.get(part, part), *kind))


def halves(name: str, tensor: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """A tensor by its published name, in the order of a model folder: the inverse of `neighbours`."""
    heads = _turned_heads(config).get(".".join(name.split(".")[3:5]))
    if heads is None:
        return tensor
    pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.swapaxes(1, 2).reshape(tensor.shape)


def _turned_heads(config: Mapping[str, Any]) -> dict[str, int]:
    if config["model_type"] != "llama":
        return {}
    return {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}


def neighbours(tensor: np.ndarray, heads: int) -> np.ndarray:
    """[heads * size, ...] with the halves of each head interleaved."""
    halved = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halved.swapaxes(1, 2).reshape(tensor.shape)
