"""EAGLE-3's layouts (Li et al. 2503.01840): as its authors publish it, and as *speculators* writes it.

`d2t` holds offsets: draft token d is the target's token d + d2t[d]. Layer ids count as HF's hidden_states do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from engine.core.errors import ModelError
from engine.heads.checkpoint import CheckpointLayout, HeadCheckpoint, TensorSpec, take
from engine.heads.decoder import LayerForm, Residual, layer_slots
from engine.models.files.folder import ModelFolder, read_tensors
from engine.models.lean_weights import ARCHITECTURES, DERIVED_SUFFIX, LeanConfig, read_config

NAMES: Final = frozenset({"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"})
CHUNKS: Final = ("input_layernorm", "hidden_norm")
IDS: Final = "eagle_aux_hidden_state_layer_ids"
UNKNOWN: Final = ("norm_before_fc", "fc_norm", "parallel_drafting")
"""Switches of unsupported variants."""
FUSED: Final = 3
"""Hidden states unless the configuration lists others."""


def matches(config: Mapping[str, Any]) -> bool:
    """An architecture of that name, or a llama with a draft vocabulary."""
    if "speculators_model_type" in config:
        return False
    named = not NAMES.isdisjoint(config.get("architectures") or ())
    return named or (config.get("model_type") in ARCHITECTURES and "draft_vocab_size" in config)


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """The fields of a head's config.json apart from its layer's sizes.

    fused: width of `fc`'s input. layers: the hidden states that are fused; None leaves them to the target's depth.
    """

    config: LeanConfig
    draft_vocabulary: int
    fused: int
    layers: tuple[int, ...] | None
    residual: Residual
    norm_output: bool

    @property
    def forms(self) -> tuple[LayerForm, ...]:
        """Of every layer: the first reads an embedding and a state, later ones are a llama's."""
        return (LayerForm(CHUNKS, self.residual), *[LayerForm()] * (self.config.layers - 1))

    def settings(self) -> dict[str, Any]:
        """For the proposer."""
        sizes = {"hidden": self.config.hidden, "vocabulary": self.config.vocabulary}
        return sizes | {"forms": self.forms, "layers": self.layers, "norm_output": self.norm_output}


def announced(document: Mapping[str, Any], where: str, norm_before_residual: bool) -> Eagle3Config:
    """Read a config.json whose layer's sizes stand at its top.

    Raises:
        ModelError: an unsupported variant, or fields that contradict each other.
    """
    nested = document.get("eagle_config") or {}
    said = {**document, **nested}
    for key in UNKNOWN:
        if said.get(key):
            raise ModelError(f"{where}: {key} is on; heads of this variant are not read, use one without it")
    if not said.get("use_aux_hidden_state", True):
        raise ModelError(f"{where}: use_aux_hidden_state is off; use a head that fuses several hidden states")
    config = read_config(document, where)
    layers = said.get(IDS)
    known = isinstance(layers, list) and layers and all(type(other) is int and other >= 0 for other in layers)
    if layers is not None and not known:
        raise ModelError(f"{where}: {IDS} must be a list of layer numbers, not {layers!r}")
    width = said.get("target_hidden_size") or config.hidden
    return Eagle3Config(
        config=config,
        draft_vocabulary=said.get("draft_vocab_size") or config.vocabulary,
        fused=width * (FUSED if layers is None else len(layers)),
        layers=None if layers is None else tuple(layers),
        residual="normed" if said.get("norm_before_residual", norm_before_residual) else "input",
        norm_output=bool(said.get("norm_output", False)),
    )


def slots(said: Eagle3Config, first: str = "midlayer.") -> list[TensorSpec]:
    """The tensors; `first` is the prefix of the first layer's names."""
    config, hidden = said.config, said.config.hidden
    result = [
        TensorSpec("fc.weight", "fc.weight", (hidden, said.fused)),
        TensorSpec("norm.weight", "norm.weight", (hidden,)),
        TensorSpec("lm_head.weight", "lm_head.weight", (said.draft_vocabulary, hidden)),
        TensorSpec("d2t", "d2t", (said.draft_vocabulary,), optional=said.draft_vocabulary == config.vocabulary),
        TensorSpec("t2d", "t2d", (config.vocabulary,), optional=True),
        TensorSpec("embed_tokens.weight", "embedding", (config.vocabulary, hidden), optional=True),
    ]
    for index, form in enumerate(said.forms):
        result += layer_slots(config, f"layers.{index}." if index else first, f"layers.{index}.", form)
    return result


def target_ids(tensors: Mapping[str, Tensor], vocabulary: int, where: str) -> Tensor | None:
    """[draft vocabulary] int64 the target's id of each draft token; None without `d2t`.

    Raises:
        ModelError: ids outside the target's vocabulary or not distinct, or at odds with `t2d`.
    """
    offsets = tensors.get("d2t")
    if offsets is None:
        return None
    if offsets.dtype is not torch.int64:
        raise ModelError(f"{where}: tensor 'd2t' is {offsets.dtype} instead of int64")
    ids = torch.arange(len(offsets)) + offsets
    sound = bool((ids >= 0).all() and (ids < vocabulary).all()) and _distinct(ids)
    mask = tensors.get("t2d")
    if sound and (mask is None or torch.equal(mask.nonzero().flatten(), ids.sort().values)):
        return ids
    absolute = _distinct(offsets) and bool((offsets >= 0).all() and (offsets < vocabulary).all())
    if absolute and (mask is None or torch.equal(mask.nonzero().flatten(), offsets.sort().values)):
        raise ModelError(f"{where}: tensor 'd2t' holds the target's ids; subtract 0, 1, 2, ... to make them offsets")
    if sound:
        raise ModelError(f"{where}: tensor 't2d' does not mark the tokens that 'd2t' leads to; restore the checkpoint")
    raise ModelError(
        f"{where}: tensor 'd2t' leads outside the target's {vocabulary} tokens or twice to one; restore the checkpoint"
    )


def _distinct(ids: Tensor) -> bool:
    return len(set(ids.tolist())) == len(ids)


def _read(folder: ModelFolder, document: Mapping[str, Any], layout: str, said: Eagle3Config) -> HeadCheckpoint:
    tensors = {name: item for name, item in read_tensors(folder).items() if not name.endswith(DERIVED_SUFFIX)}
    first = "midlayer." if any(name.startswith("midlayer.") for name in tensors) else "layers.0."
    result = take(tensors, slots(said, first), folder.name())
    ids = target_ids(result, said.config.vocabulary, folder.name())
    kept = {name: item for name, item in result.items() if name not in ("d2t", "t2d")}
    if ids is not None:
        kept["target_ids"] = ids
    lossy = declared_lossy(document.get("speculators_config") or {})
    return HeadCheckpoint(layout, "eagle3", document, kept, said.settings(), lossy)


def read(folder: ModelFolder) -> HeadCheckpoint:
    """The head in a folder of the authors' layout.

    Raises:
        ModelError: a configuration that the decoder lacks, or a tensor that is missing, unexpected or misshapen.
    """
    said = announced(folder.config, folder.name("config.json"), norm_before_residual=False)
    return _read(folder, folder.config, "eagle3", said)


def read_speculators(folder: ModelFolder) -> HeadCheckpoint:
    """The head in a folder that *speculators* wrote. Raises ModelError: as `read`, or no `transformer_layer_config`."""
    layer, where = folder.config.get("transformer_layer_config"), folder.name("config.json")
    if not isinstance(layer, Mapping):
        raise ModelError(f"{where}: transformer_layer_config is missing; restore the file")
    document = {**folder.config, **layer}
    return _read(folder, document, "eagle3_speculators", announced(document, where, norm_before_residual=True))


def declared_lossy(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The declarations of a `speculators_config` that do not keep the target's law."""
    methods: Sequence[Mapping[str, Any]] = config.get("proposal_methods") or ()
    bounds = {"verifier_accept_k": 1, "accept_tolerance": 0}
    return tuple(
        f"{key} {method[key]} ({method.get('proposal_type', 'unnamed')})"
        for method in methods
        for key, most in bounds.items()
        if (method.get(key) or 0) > most
    )


LAYOUT: Final = CheckpointLayout("eagle3", matches, read)
SPECULATORS: Final = CheckpointLayout(
    "eagle3_speculators", lambda config: config.get("speculators_model_type") == "eagle3", read_speculators
)
