"""The names and the order of a model's weights in a GGUF file.

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


def named_tensors(weights: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors by llama.cpp's names.

    Raises:
        KeyError: a tensor that no model of these families has.
    """
    heads = {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}
    paired = config["model_type"] == "llama"
    for name, tensor in weights.items():
        if name in WHOLE:
            yield WHOLE[name], tensor
            continue
        _, _, layer, rest = name.split(".", 3)
        part, _, kind = rest.rpartition(".")
        turned = neighbours(tensor, heads[part]) if paired and part in heads else tensor
        yield f"blk.{layer}.{LAYER[part]}.{kind}", turned


def neighbours(tensor: np.ndarray, heads: int) -> np.ndarray:
    """[heads * size, ...] with the halves of each head interleaved."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)
