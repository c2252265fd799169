"""``python -m engine.tools.export_mimo``: a target and its MTP module as one folder in MiMo's layout, for vLLM.

vLLM runs MTP modules with ordinary attention in few layouts; MiMo's layout requires a qwen2 target with the module
beside it and passes the module states from before the final norm. What is written:

- the target as a qwen2, with biases of 0 where it has none, and its final norm's
  weights g folded into an output matrix of its own: the same logits;
- the module for states without g. Its norm of the state read w g x / rms(g x) where
  x is the state before the norm with root mean square 1; it reads w g x / c. The
  constant c is rms(g), so the module is the same where the weights of g are all
  equal, and else is the same but for a factor per token on the state's half.

Everything is float32.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from engine.core.errors import EngineError, ModelError
from engine.heads.checkpoint import HeadCheckpoint, TensorSpec
from engine.heads.decoder import LayerForm, layer_slots
from engine.heads.formats.mtp import BEFORE_NORM, COUNT, FAMILY, LAYER, WHOLE, mimo_slots, swapped
from engine.heads.loading import load_head
from engine.models.decoder.lean import LeanModel
from engine.models.lean_weights import LayerWeights, LeanConfig, read_config
from engine.models.loading import LoadedModel, load_model
from engine.models.numerics.interface import Affine


def combined(target: LeanModel, head: HeadCheckpoint) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The float32 target and its single module in MiMo's layout: config.json, and tensors by their published names.

    Raises:
        ModelError: a target or a module that qwen2 layers cannot represent, or that do not fit each other.
    """
    module = read_config(head.config, f"{head.layout} head")
    _require_qwen2(target, "the target")
    _require_module(target.config, head, module)
    config = replace(
        target.config, architecture=LAYER, qkv_bias=True, tied=False, ffn=max(target.config.ffn, module.ffn)
    )
    layers = {f"model.layers.{i}.": _layer(layer, target.config) for i, layer in enumerate(target.weights.layers)}
    tensors = {
        "model.embed_tokens.weight": target.weights.embedding,
        "model.norm.weight": torch.ones_like(target.weights.norm),
        "lm_head.weight": target.weights.head * target.weights.norm,
    }
    for at, result in layers.items():
        tensors |= _filled(layer_slots(config, at, "", LayerForm()), result)
    tensors |= _filled(mimo_slots(config, 1), _module(head, target.weights.norm))
    return _document(config, target), {name: item.contiguous().clone() for name, item in tensors.items()}


def _require_qwen2(target: LeanModel, what: str) -> None:
    config = target.config
    unlike = {
        "an output bias": config.out_bias,
        "MLP biases": config.mlp_bias,
        "norms of queries and keys": config.qk_norm,
        f"head_dim {config.head_dim} at {config.heads} heads": config.head_dim * config.heads != config.hidden,
        "final norm weights of 0": not bool(target.weights.norm.all()),
    }
    result = next((name for name, is_so in unlike.items() if is_so), None)
    if result is not None:
        raise ModelError(f"{what} has {result}, which MiMo's layout has no place for; use a llama or qwen2 without")


def _require_module(target: LeanConfig, head: HeadCheckpoint, module: LeanConfig) -> None:
    if head.family != FAMILY or head.settings.get(BEFORE_NORM):
        raise ModelError(f"a {head.layout} head cannot be written as MiMo's; give an MTP module of another layout")
    if head.settings["modules"] != 1:
        raise ModelError(f"the head has {head.settings['modules']} modules; vLLM runs MiMo's first one only, give one")
    own = next((name for name in ("embedding", "head") if f"modules.0.{name}" in head.tensors), None)
    if own is not None:
        raise ModelError(f"the module has its own {own}; in MiMo's layout it shares the target's, give one without")
    for name in ("hidden", "vocabulary", "heads", "kv_heads", "head_dim", "eps", "rope"):
        theirs, wanted = getattr(module, name), getattr(target, name)
        if theirs != wanted:
            raise ModelError(
                f"the module's {name} is {theirs}, the target's is {wanted}; MiMo's layout has one for both"
            )
    if module.out_bias or module.mlp_bias or module.qk_norm:
        raise ModelError("the module's layer has biases or norms that qwen2's layers lack; give one without")


def _layer(layer: LayerWeights, config: LeanConfig) -> dict[str, Tensor]:
    sizes = [config.heads * config.head_dim, *[config.kv_heads * config.head_dim] * 2]
    result = {
        "input_layernorm.weight": layer.attention_norm,
        "post_attention_layernorm.weight": layer.ffn_norm,
        "self_attn.o_proj.weight": layer.out.weight,
        "mlp.down_proj.weight": layer.down.weight,
    }
    result |= _apart(layer.qkv, [f"self_attn.{name}_proj" for name in "qkv"], sizes)
    return result | _apart(layer.gate_up, ["mlp.gate_proj", "mlp.up_proj"], [config.ffn] * 2)


def _apart(fused: Affine, names: Sequence[str], sizes: Sequence[int]) -> dict[str, Tensor]:
    result = {f"{name}.weight": part for name, part in zip(names, torch.split(fused.weight, list(sizes)), strict=True)}
    if fused.bias is not None:
        result |= {f"{name}.bias": part for name, part in zip(names, torch.split(fused.bias, list(sizes)), strict=True)}
    return result


def _module(head: HeadCheckpoint, norm: Tensor) -> dict[str, Tensor]:
    """The module's tensors by our names, for states without the final norm's weights `norm` [H]."""
    result = {name: tensor.float() for name, tensor in head.tensors.items()}
    constant = norm.square().mean().sqrt()
    result["modules.0.hidden_norm"] = result["modules.0.hidden_norm"] * norm / constant
    result["modules.0.norm"] = result["modules.0.norm"] / norm
    result["modules.0.project"] = swapped(result["modules.0.project"])
    return result


def _filled(slots: Sequence[TensorSpec], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by their published names; missing or too small ones are padded with 0, which changes no product."""
    filled = {}
    for slot in slots:
        tensor = tensors.get(slot.name)
        if tensor is None:
            filled[slot.published] = torch.zeros(slot.shape)
            continue
        room = [(0, wanted - size) for size, wanted in zip(tensor.shape, slot.shape, strict=True)]
        filled[slot.published] = F.pad(tensor, [item for pair in reversed(room) for item in pair])
    return filled


def _document(config: LeanConfig, target: LeanModel) -> dict[str, Any]:
    return {
        "architectures": [WHOLE],
        "model_type": LAYER,
        COUNT: 1,
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "num_hidden_layers": config.layers,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.eps,
        "rope_parameters": dict(config.rope),
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": False,
        "eos_token_id": list(target.eos_ids),
        "dtype": "float32",
    }


def export(target: str, head: str, out: Path) -> None:
    """Write the folder, with the target's tokenizer; `target` and `head` are sources of models.

    Raises:
        ModelError: a source that cannot be loaded, or as `combined`.
    """
    loaded, result = load_model(target), load_head(head)
    if result is None:
        raise ModelError(f"{head}: a model that runs alone; give an MTP module")
    config, tensors = combined(_lean(loaded), result.head)
    out.mkdir(parents=True, exist_ok=True)
    if loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(out)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _lean(loaded: LoadedModel) -> LeanModel:
    assert isinstance(loaded.model, LeanModel)  # the loader asked for
    return loaded.model


def main(arguments: Sequence[str] | None = None) -> None:
    """Write one folder."""
    parser = argparse.ArgumentParser(
        prog="python -m engine.tools.export_mimo",
        description="a target and its MTP module as one folder in MiMo's layout",
    )
    parser.add_argument("--target", required=True, help="a folder, a .gguf file, bundled:NAME or hf:ORG/NAME")
    parser.add_argument("--head", required=True, help="its MTP module, likewise")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    given = parser.parse_args(arguments)
    try:
        export(given.target, given.head, given.out)
    except (EngineError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
