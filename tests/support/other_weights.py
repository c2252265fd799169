"""Folders of the bundled target whose files are not what their name says: what an engine may serve by mistake."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.loading import open_source

Weights = dict[str, Tensor]
Mistake = Callable[[Weights, dict[str, Any]], None]
LAYER = "model.layers.1"
HEAD = 32
"""Width of one attention head of the bundled target."""


def _scaled(weights: Weights, _config: dict[str, Any]) -> None:
    weights[f"{LAYER}.self_attn.o_proj.weight"] *= 0.9


def _skipped(weights: Weights, _config: dict[str, Any]) -> None:
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        weights[f"{LAYER}.{name}.weight"].zero_()


def _headless(weights: Weights, _config: dict[str, Any]) -> None:
    weights[f"{LAYER}.self_attn.o_proj.weight"][:, :HEAD].zero_()


def _rotated(_weights: Weights, config: dict[str, Any]) -> None:
    config["rope_parameters"]["rope_theta"] = 500000.0


def _norm(_weights: Weights, config: dict[str, Any]) -> None:
    config["rms_norm_eps"] = 1e-2


def _swapped(weights: Weights, _config: dict[str, Any]) -> None:
    """A few frequent tokens in turn, as after a tokenizer with other added tokens; the head is tied to it."""
    table = weights["model.embed_tokens.weight"]
    table[300:316] = table[300:316].roll(1, dims=0).clone()


def _adapted(weights: Weights, _config: dict[str, Any]) -> None:
    name = f"{LAYER}.self_attn.q_proj.weight"
    made = torch.Generator().manual_seed(5)
    rows, columns = weights[name].shape
    down, up = (torch.randn(4, width, generator=made) for width in (columns, rows))
    weights[name] += 0.02 * up.T @ down


def _rounded(weights: Weights, _config: dict[str, Any]) -> None:
    """The matrices of the layers in steps of a fifteenth of each row's range."""
    for name, matrix in weights.items():
        if name.endswith("proj.weight"):
            step = matrix.abs().amax(dim=1, keepdim=True) / 7
            weights[name] = (matrix / step).round() * step


MISTAKES: Mapping[str, Mistake] = {
    "attention_scaled": _scaled,
    "layer_skipped": _skipped,
    "head_zeroed": _headless,
    "other_rope_base": _rotated,
    "other_norm_epsilon": _norm,
    "embeddings_swapped": _swapped,
    "adapter_merged": _adapted,
    "weights_of_4_bits": _rounded,
}


def other_target(mistake: str, folder: Path, source: str = "bundled:target") -> Path:
    """A copy of the target with the mistake, made in `folder`."""
    out = folder / mistake
    shutil.copytree(open_source(source).folder.path, out)
    weights, config = load_file(out / "model.safetensors"), json.loads((out / "config.json").read_text())
    MISTAKES[mistake](weights, config)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config))
    return out
