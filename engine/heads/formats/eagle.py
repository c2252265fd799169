"""EAGLE-1's layout (Li et al. 2401.15077): a llama layer without its first norm, and the matrix in front of it."""

from collections.abc import Mapping
from typing import Any, Final

from engine.heads.checkpoint import CheckpointLayout, HeadCheckpoint, TensorSpec, take
from engine.heads.decoder import LayerForm, layer_slots
from engine.models.files.folder import ModelFolder, read_tensors
from engine.models.lean_weights import ARCHITECTURES, DERIVED_SUFFIX, LeanConfig, read_config

NAMES: Final = frozenset({"EagleLlamaForCausalLM", "EagleForCausalLM"})


def matches(config: Mapping[str, Any]) -> bool:
    """A llama's config.json with the key `bias`, which llamas do not have, or an architecture of that name."""
    if "draft_vocab_size" in config or config.get("model_type") not in ARCHITECTURES:
        return False
    return "bias" in config or not NAMES.isdisjoint(config.get("architectures") or ())


def forms(count: int) -> tuple[LayerForm, ...]:
    """Of `count` layers: the first has no norm before its attention."""
    return (LayerForm((None,)), *[LayerForm()] * (count - 1))


def slots(config: LeanConfig, bias: bool) -> list[TensorSpec]:
    """The tensors of a head with or without a bias behind `fc`; the embedding may be left to the target."""
    hidden = config.hidden
    result = [TensorSpec("fc.weight", "fc.weight", (hidden, 2 * hidden))]
    result += [TensorSpec("fc.bias", "fc.bias", (hidden,))] if bias else []
    result.append(TensorSpec("embed_tokens.weight", "embedding", (config.vocabulary, hidden), optional=True))
    for index, form in enumerate(forms(config.layers)):
        result += layer_slots(config, f"layers.{index}.", f"layers.{index}.", form)
    return result


def read(folder: ModelFolder) -> HeadCheckpoint:
    """The head in a folder.

    Raises:
        ModelError: a configuration that the decoder lacks, or a tensor that is missing, unexpected or misshapen.
    """
    config = read_config(folder.config, folder.name("config.json"))
    tensors = {name: item for name, item in read_tensors(folder).items() if not name.endswith(DERIVED_SUFFIX)}
    result = take(tensors, slots(config, bool(folder.config.get("bias", True))), folder.name())
    settings = {"hidden": config.hidden, "vocabulary": config.vocabulary}
    return HeadCheckpoint("eagle", "eagle", folder.config, result, settings)


LAYOUT: Final = CheckpointLayout("eagle", matches, read)
