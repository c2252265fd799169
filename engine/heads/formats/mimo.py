"""Multi-token prediction modules as MiMo publishes them: qwen2 layers beside the model, as vLLM reads them.

A MiMo module reads the target's state before the final norm, and the state's half
comes first. In this project's heads the embedding comes first, so the halves are
swapped; the settings request the state without the norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from engine.core.errors import ModelError
from engine.heads.checkpoint import CheckpointLayout, HeadCheckpoint, TensorSpec, take
from engine.heads.decoder import LayerForm, layer_slots
from engine.heads.formats.mtp import COUNT, FAMILY, model_s_own
from engine.models.files.folder import ModelFolder, read_tensors
from engine.models.lean_weights import LeanConfig, read_config

WHOLE: Final = "MiMoForCausalLM"
NAMES: Final = frozenset({WHOLE, "MiMoMTPModel"})
LAYER: Final = "qwen2"
MODEL_TYPES: Final = ("mimo", LAYER)
OUTPUT: Final = "lm_head.weight"
BEFORE_NORM: Final = "before_norm"
"""The setting that the modules read states as they are before the target's final norm."""


def mimo_slots(config: LeanConfig, count: int) -> list[TensorSpec]:
    """The tensors of `count` modules; `project` still has the state's half first."""
    slots: list[TensorSpec] = []
    for k in range(count):
        at, ours, hidden = f"model.mtp_layers.{k}.", f"modules.{k}.", config.hidden
        slots += [
            TensorSpec(f"{at}token_layernorm.weight", f"{ours}embedding_norm", (hidden,)),
            TensorSpec(f"{at}hidden_layernorm.weight", f"{ours}hidden_norm", (hidden,)),
            TensorSpec(f"{at}input_proj.weight", f"{ours}project", (hidden, 2 * hidden)),
            TensorSpec(f"{at}final_layernorm.weight", f"{ours}norm", (hidden,)),
            *layer_slots(config, at, f"{ours}layers.0.", LayerForm()),
        ]
    return slots


def swapped(project: Tensor) -> Tensor:
    """[H, 2 H] with its halves in the other order."""
    first, second = project.chunk(2, 1)
    return torch.cat([second, first], 1)


def matches(config: Mapping[str, Any]) -> bool:
    """An architecture of that name; the whole model's folder is read as a head too."""
    return not NAMES.isdisjoint(config.get("architectures") or ())


def read(folder: ModelFolder) -> HeadCheckpoint:
    """The modules in a folder, and the output matrix beside them where it is not the embedding.

    Raises:
        ModelError: another layer than qwen2's, an invalid count, or a tensor.
    """
    where, document = folder.name("config.json"), dict(folder.config)
    if document.get("model_type") not in MODEL_TYPES:
        raise ModelError(f"{where}: model_type must be {' or '.join(MODEL_TYPES)}, not {document.get('model_type')!r}")
    count = document.get(COUNT)
    if type(count) is not int or count < 1:
        raise ModelError(f"{where}: {COUNT} must be a positive integer, not {count!r}")
    document["model_type"] = LAYER
    config = read_config(document, where)
    stored = read_tensors(folder)
    own = {name: tensor for name, tensor in stored.items() if not model_s_own(name, config.layers)}
    tensors = take(own, mimo_slots(config, count), folder.name())
    for k in range(count):
        tensors[f"modules.{k}.project"] = swapped(tensors[f"modules.{k}.project"])
    if OUTPUT in stored and not config.tied:
        shape = (config.vocabulary, config.hidden)
        output = take({OUTPUT: stored[OUTPUT]}, [TensorSpec(OUTPUT, "head", shape)], folder.name())["head"]
        tensors |= {f"modules.{k}.head": output for k in range(count)}
    settings = {"modules": count, "hidden": config.hidden, "vocabulary": config.vocabulary, BEFORE_NORM: True}
    return HeadCheckpoint("mimo_mtp", FAMILY, document, tensors, settings)


LAYOUT: Final = CheckpointLayout("mimo_mtp", matches, read)
