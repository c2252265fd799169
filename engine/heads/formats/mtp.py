"""Multi-token prediction (MTP) modules: the layouts of DeepSeek, Qwen3-Next and MiMo.

Module k reads the normed embedding of a token and the normed state before it, side by side, through one matrix into one
decoder layer. Published folders hold the modules beside the model that they were trained with; of such a folder only
the modules are read. A MiMo module has a qwen2 layer, as vLLM reads it; it reads the target's state before the final
norm, and the state's half comes first. In this project's heads the embedding comes first, so its halves are swapped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from engine.core.errors import ModelError
from engine.heads.checkpoint import CheckpointLayout, HeadCheckpoint, TensorSpec, take
from engine.heads.decoder import LayerForm, layer_slots
from engine.models.files.folder import ModelFolder, read_tensors
from engine.models.lean_weights import DERIVED_SUFFIX, LeanConfig, read_config

COUNT: Final = "num_nextn_predict_layers"
FAMILY: Final = "mtp"
DEEPSEEK_ARCHITECTURE: Final = "DeepSeekMTPModel"
"""Architecture in config.json of a folder of modules, as in vLLM; whole models are named ...ForCausalLM."""
QWEN3_NEXT: Final = "Qwen3NextMTP"
MODEL_TENSORS: Final = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class _Names:
    """The prefix of the published name of each of a module's tensors; None for a tensor that it lacks."""

    embedding_norm: str
    hidden_norm: str
    project: str
    layer: str
    norm: str
    embedding: str | None = None
    head: str | None = None


def deepseek_slots(config: LeanConfig, count: int) -> list[TensorSpec]:
    """The tensors of `count` modules, which DeepSeek numbers on after the model's own layers."""
    slots: list[TensorSpec] = []
    for k in range(count):
        at = f"model.layers.{config.layers + k}."
        names = _Names(
            embedding_norm=f"{at}enorm",
            hidden_norm=f"{at}hnorm",
            project=f"{at}eh_proj",
            layer=at,
            norm=f"{at}shared_head.norm",
            embedding=f"{at}embed_tokens",
            head=f"{at}shared_head.head",
        )
        slots += _slots(config, names, k)
    return slots


def qwen3_next_slots(config: LeanConfig) -> list[TensorSpec]:
    """The tensors of the one module that Qwen3-Next has."""
    names = _Names("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.layers.0.", "mtp.norm")
    return _slots(config, names, 0)


def _slots(config: LeanConfig, names: _Names, k: int) -> list[TensorSpec]:
    ours, hidden = f"modules.{k}.", config.hidden
    slots = [
        TensorSpec(f"{names.embedding_norm}.weight", f"{ours}embedding_norm", (hidden,)),
        TensorSpec(f"{names.hidden_norm}.weight", f"{ours}hidden_norm", (hidden,)),
        TensorSpec(f"{names.project}.weight", f"{ours}project", (hidden, 2 * hidden)),
        TensorSpec(f"{names.norm}.weight", f"{ours}norm", (hidden,)),
        *layer_slots(config, names.layer, f"{ours}layers.0.", LayerForm()),
    ]
    matrices = {"embedding": names.embedding, "head": names.head}
    shape = (config.vocabulary, hidden)
    named = {own: name for own, name in matrices.items() if name is not None}
    return slots + [TensorSpec(f"{name}.weight", f"{ours}{own}", shape, optional=True) for own, name in named.items()]


def _announces_deepseek(config: Mapping[str, Any]) -> bool:
    architectures = _architectures(config)
    whole = any(name.endswith("ForCausalLM") for name in architectures)
    return bool(config.get(COUNT)) and not whole and QWEN3_NEXT not in architectures


def _architectures(config: Mapping[str, Any]) -> Sequence[str]:
    return [str(name) for name in config.get("architectures") or ()]


def _read_deepseek(folder: ModelFolder) -> HeadCheckpoint:
    """In DeepSeek's layout, with llama's attention; raises ModelError: latent attention, experts, a count, a tensor."""
    where = folder.name("config.json")
    if folder.config.get("kv_lora_rank") is not None:
        raise ModelError(f"{where}: kv_lora_rank: DeepSeek's latent attention (MLA) has no decoder here; {_ONLY}")
    _refuse_experts(folder.config, where)
    count = folder.config[COUNT]
    if type(count) is not int or count < 1:
        raise ModelError(f"{where}: {COUNT} must be a positive integer, not {count!r}")
    config = read_config(folder.config, where)
    return _head("deepseek_mtp", folder, deepseek_slots(config, count), config)


def _read_qwen3_next(folder: ModelFolder) -> HeadCheckpoint:
    """In Qwen3-Next's layout, with llama's attention; raises ModelError: its own gated layer with experts, a tensor."""
    where = folder.name("config.json")
    if folder.config.get("model_type") == "qwen3_next":
        raise ModelError(f"{where}: model_type 'qwen3_next' has gated attention, which has no decoder here; {_ONLY}")
    _refuse_experts(folder.config, where)
    config = read_config(folder.config, where)
    return _head("qwen3_next_mtp", folder, qwen3_next_slots(config), config)


_ONLY: Final = "only modules with a llama, qwen2 or qwen3 layer can be used"


def _refuse_experts(config: Mapping[str, Any], where: str) -> None:
    for field in ("n_routed_experts", "num_experts"):
        if config.get(field):
            raise ModelError(f"{where}: {field}: layers with experts have no decoder here; {_ONLY}")


def _head(layout: str, folder: ModelFolder, slots: Sequence[TensorSpec], config: LeanConfig) -> HeadCheckpoint:
    own = {name: tensor for name, tensor in read_tensors(folder).items() if not model_s_own(name, config.layers)}
    tensors: dict[str, Tensor] = take(own, slots, folder.name())
    modules = 1 + max(int(name.split(".")[1]) for name in tensors)
    settings = {"modules": modules, "hidden": config.hidden, "vocabulary": config.vocabulary}
    return HeadCheckpoint(layout, FAMILY, folder.config, tensors, settings)


def model_s_own(name: str, layers: int) -> bool:
    """Whether a tensor belongs to the model beside which the modules were published."""
    first, _, rest = name.removeprefix("model.layers.").partition(".")
    numbered = name.startswith("model.layers.") and first.isdecimal() and bool(rest)
    return name in MODEL_TENSORS or name.endswith(DERIVED_SUFFIX) or (numbered and int(first) < layers)


DEEPSEEK: Final = CheckpointLayout("deepseek_mtp", _announces_deepseek, _read_deepseek)
QWEN3_NEXT_LAYOUT: Final = CheckpointLayout(
    "qwen3_next_mtp", lambda config: QWEN3_NEXT in _architectures(config), _read_qwen3_next
)


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
        at = f"model.mtp_layers.{k}."
        first, last = (f"{at}token_layernorm", f"{at}hidden_layernorm", f"{at}input_proj"), f"{at}final_layernorm"
        slots += _slots(config, _Names(*first, at, last), k)
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
