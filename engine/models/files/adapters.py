"""LoRA adapters in PEFT's format: read, made from a seed, and merged into their target.

An adapter adds `alpha / r * B A` to some matrices of a target. Merged weights hold the sum, so that a model with them
is a second account of what an engine computes with the adapter. `made:SEED` is an adapter of random numbers for a
given target, the same on every machine: suites need no download and no training to tell adapters apart. Cannot read:
adapters that replace whole modules, DoRA, and ranks or factors by module.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.core.errors import ModelError

MADE: Final = "made:"
CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
PREFIX: Final = "base_model.model."
MODULES: Final = ("q_proj", "v_proj", "down_proj")
"""Matrices that a made adapter changes."""
RANK: Final = 8
STRENGTH: Final = 0.5
"""Size of a made adapter's change, relative to the matrix: enough to change most answers."""
UNREAD: Final = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias", "use_rslora")
"""Options whose adapters `merge` would get wrong."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter; `sha256` is of its configuration and its weights."""

    name: str
    source: str
    folder: Path
    rank: int
    sha256: str


def open_adapter(name: str, source: str, target: Path, scratch: Path) -> Adapter:
    """The adapter in a folder, or the one that `made:SEED` names, which is written into `scratch`.

    Raises:
        ModelError: no such folder, or an adapter that cannot be merged.
    """
    folder = scratch / f"adapter-{name}" if source.startswith(MADE) else Path(source).expanduser().resolve()
    if source.startswith(MADE):
        _make(_seed(source), target, folder)
    config = _config(folder, source)
    odd = next((key for key in UNREAD if config.get(key)), None)
    if odd is not None:
        raise ModelError(f"adapter {source}: {CONFIG} sets {odd}, which cannot be merged; use a plain LoRA adapter")
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"adapter {source}: there is no {WEIGHTS}; save the adapter with safetensors")
    digest = hashlib.sha256((folder / CONFIG).read_bytes() + (folder / WEIGHTS).read_bytes()).hexdigest()
    return Adapter(name, source, folder, int(config["r"]), digest)


def merge(target: Path, adapter: Path, into: Path) -> None:
    """Write the target with the adapter's changes added to its weights; other files are the target's own.

    Raises:
        ModelError: the adapter changes a matrix that the target lacks.
    """
    into.mkdir(parents=True)
    changes = dict(_changes(adapter))
    for file in target.iterdir():
        if file.suffix == ".safetensors":
            tensors = load_file(file)
            for name in tensors.keys() & changes.keys():
                tensors[name] = (tensors[name].double() + changes.pop(name)).to(tensors[name].dtype).contiguous()
            save_file(tensors, into / file.name, {"format": "pt"})
        elif file.is_file():
            (into / file.name).write_bytes(file.read_bytes())
    if changes:
        raise ModelError(f"adapter {adapter}: the target has no matrix {min(changes)}; use an adapter of this target")


def _changes(adapter: Path) -> Iterator[tuple[str, Tensor]]:
    """For each changed matrix its name in the target and `alpha / r * B A`, in float64."""
    config = _config(adapter, str(adapter))
    tensors = load_file(adapter / WEIGHTS)
    for name, down in tensors.items():
        if name.endswith(".lora_A.weight"):
            module = name.removesuffix(".lora_A.weight")
            up = tensors[f"{module}.lora_B.weight"]
            change = (up.double() @ down.double()) * (config["lora_alpha"] / config["r"])
            yield f"{module.removeprefix(PREFIX)}.weight", change


def _config(folder: Path, source: str) -> Mapping[str, Any]:
    try:
        config: Mapping[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"adapter {source}: {folder / CONFIG} cannot be read; name a folder in PEFT's format"
        ) from error
    return config


def _seed(source: str) -> int:
    text = source.removeprefix(MADE)
    if not text.isdecimal():
        raise ModelError(f"adapter {source}: {text!r} is no seed; write made: and a whole number, or a folder")
    return int(text)


def _make(seed: int, target: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    tensors: dict[str, Tensor] = {}
    for file in sorted(target.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            for name in sorted(weights.keys()):
                if name.removesuffix(".weight").endswith(MODULES):
                    tensors |= _pair(name.removesuffix(".weight"), weights.get_tensor(name), random)
    if not tensors:
        raise ModelError(f"{target}: no matrix is named {', '.join(MODULES)}; name an adapter's folder")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "bias": "none",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(MODULES),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(tensors, folder / WEIGHTS)


def _pair(module: str, weight: Tensor, random: np.random.Generator) -> dict[str, Tensor]:
    """A and B of one matrix: their product has `STRENGTH` times the matrix's mean square root."""
    out, inner = weight.shape
    size = STRENGTH * weight.double().square().mean().sqrt().item() / RANK**0.5
    factors = {"lora_A": random.standard_normal((RANK, inner)), "lora_B": size * random.standard_normal((out, RANK))}
    return {f"{PREFIX}{module}.{name}.weight": torch.tensor(item).float() for name, item in factors.items()}
