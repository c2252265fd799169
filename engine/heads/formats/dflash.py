"""DFlash block drafters: decoder layers that read features of the target beside a block of masks.

Embedding and output matrix are the target's.
"""

from collections.abc import Mapping
from typing import Final

from engine.core.errors import ModelError
from engine.heads.checkpoint import CheckpointLayout, HeadCheckpoint, TensorSpec, take
from engine.heads.decoder import LayerForm, layer_slots
from engine.models.files.folder import ModelFolder, read_tensors
from engine.models.lean_weights import LeanConfig, read_config

FAMILY: Final = "dflash"
SECTION: Final = "dflash_config"


def dflash_slots(config: LeanConfig, features: int) -> list[TensorSpec]:
    """The tensors of a drafter that reads `features` hidden states per token."""
    hidden = config.hidden
    slots = [
        TensorSpec("fc.weight", "fc", (hidden, features * hidden)),
        TensorSpec("hidden_norm.weight", "hidden_norm", (hidden,)),
        TensorSpec("norm.weight", "norm", (hidden,)),
    ]
    for i in range(config.layers):
        slots += layer_slots(config, f"layers.{i}.", f"layers.{i}.", LayerForm())
    return slots


def _read(folder: ModelFolder) -> HeadCheckpoint:
    """A drafter; `target_layer_ids` i means the output of layer i, which transformers calls hidden_states[i + 1];
    raises ModelError: a count, a token or a layer that does not fit; a tensor.
    """
    where, document = folder.name("config.json"), folder.config
    config, section = read_config(document, where), document[SECTION]
    targets, block = document.get("num_target_layers"), document.get("block_size")
    mask, layers = section.get("mask_token_id"), section.get("target_layer_ids")
    if type(block) is not int or block < 2:
        raise ModelError(f"{where}: block_size must be a whole number of at least 2, not {block!r}")
    if type(mask) is not int or not 0 <= mask < config.vocabulary:
        raise ModelError(f"{where}: mask_token_id must be a token below {config.vocabulary}, not {mask!r}")
    if type(targets) is not int or targets < 1:
        raise ModelError(f"{where}: num_target_layers must be a positive integer, not {targets!r}")
    if not isinstance(layers, list) or not layers or not all(type(i) is int and 0 <= i < targets for i in layers):
        raise ModelError(f"{where}: target_layer_ids must be layers from 0 to {targets - 1}, not {layers!r}")
    tensors = take(read_tensors(folder), dflash_slots(config, len(layers)), folder.name())
    settings = {
        "hidden": config.hidden,
        "vocabulary": config.vocabulary,
        "block": block,
        "mask": mask,
        "states": tuple(i + 1 for i in layers),
        "target_layers": targets,
    }
    return HeadCheckpoint("dflash", FAMILY, document, tensors, settings)


LAYOUT: Final = CheckpointLayout("dflash", lambda config: isinstance(config.get(SECTION), Mapping), _read)
