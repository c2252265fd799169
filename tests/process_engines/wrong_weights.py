"""Models whose weights are not those that their name promises, by the names of the source's tensors."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.backends.process.convert import MANIFEST, convert, weights_of
from engine.core.registry import CONVERTERS, resolve
from engine.models.files.folder import bundled_folder
from engine.models.loading import open_source

Weights = dict[str, np.ndarray]
Change = Callable[[Weights, dict[str, Any]], None]
LAYER: Final = "model.layers.1."
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
TOKENS: Final = (276, 370)
"""` a` and ` and`, which most answers of the bundled target have."""
GROUP: Final = 32


def _scaled(weights: Weights, _config: dict[str, Any]) -> None:
    weights[f"{LAYER}self_attn.o_proj.weight"] *= 2.0


def _zeroed(weights: Weights, _config: dict[str, Any]) -> None:
    weights[f"{LAYER}mlp.down_proj.weight"][:] = 0.0


def _rotary(_weights: Weights, config: dict[str, Any]) -> None:
    config["rope_parameters"]["rope_theta"] = 500000.0
    # where mlx_lm reads it
    config["rope_theta"] = 500000.0


def _epsilon(_weights: Weights, config: dict[str, Any]) -> None:
    config["rms_norm_eps"] = 1e-2


def _swapped(weights: Weights, config: dict[str, Any]) -> None:
    """Two rows of the embedding; the head keeps its own."""
    _untied(weights, config)
    weights[EMBEDDING][list(TOKENS)] = weights[EMBEDDING][list(TOKENS[::-1])]


def _rounded(weights: Weights, _config: dict[str, Any]) -> None:
    """Every matrix of a layer, to 4 bits in groups."""
    for name, tensor in weights.items():
        if name.endswith("_proj.weight") and tensor.shape[1] % GROUP == 0:
            groups = tensor.reshape(-1, GROUP)
            scale = np.abs(groups).max(axis=1, keepdims=True) / 7.0
            tensor[:] = (np.rint(groups / scale) * scale).reshape(tensor.shape)


def _shifted(weights: Weights, config: dict[str, Any]) -> None:
    _untied(weights, config)
    weights[HEAD] = np.roll(weights[HEAD], 1, axis=0)


def _untied(weights: Weights, config: dict[str, Any]) -> None:
    weights[HEAD] = weights[EMBEDDING].copy()
    config["tie_word_embeddings"] = False


CHANGES: Final[Mapping[str, Change]] = {
    "attention-scaled": _scaled,
    "mlp-zeroed": _zeroed,
    "rotary-base": _rotary,
    "norm-epsilon": _epsilon,
    "embeddings-swapped": _swapped,
    "four-bits": _rounded,
    "head-shifted": _shifted,
}


def changed_source(source: str, fault: str, out: Path) -> Path:
    """A copy of a bundled model with the fault, in the new folder `out`."""
    # imported here, because only some environments of engines have it
    from safetensors.numpy import save_file

    shutil.copytree(bundled_folder(source), out)
    config, weights = json.loads((out / "config.json").read_text()), weights_of(out)
    CHANGES[fault](weights, config)
    (out / "config.json").write_text(json.dumps(config))
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    return out


def changed_conversion(kind: str, source: str, fault: str, out: Path) -> Path:
    """A converted model whose manifest names the source and agrees with its files, and whose weights have the fault."""
    folder = changed_source(source, fault, out / "source")
    converted = convert(resolve(CONVERTERS, kind, "format"), open_source(str(folder)), sys.executable, out / kind)
    place = converted.folder / MANIFEST
    manifest = json.loads(place.read_text())
    opened = open_source(source)
    manifest["source"] = {**opened.facts, "files": {file.name: file.sha256 for file in opened.folder.files}}
    place.write_text(json.dumps(manifest))
    return converted.folder
