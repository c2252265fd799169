"""MLP speculators (Wertheimer et al. 2404.19124), as IBM's accelerators are published.

One stage per drafted token. With `tie_weights` all stages share one embedding, norm and output matrix, and all but the
first one projection; a file then holds the first copy, or equal ones. Names and keys are those that vLLM's and
transformers' readers of the format expect.

Our names, for stage i: `emb.{i}` [V, I], `proj.{i}` [I, H or I], `norm.{i}.weight` and `norm.{i}.bias` [I], `head.{i}`
[V, I].
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from engine.core.errors import ModelError
from engine.heads.checkpoint import CheckpointLayout, HeadCheckpoint, TensorSpec, take
from engine.models.files.folder import ModelFolder, read_tensors

PREFIX: Final = "speculator."
"""Before every name in files that transformers wrote; other writers leave it out."""
STAGE: Final = re.compile(r"proj\.(\d+)\.weight")
UNTIED: Final = {"emb": 0, "head": 0, "ln": 0, "proj": 1}
"""Of each kind of tensor, the first stage that shares it where weights are tied."""


@dataclass(frozen=True, slots=True)
class MlpSpeculatorSizes:
    """The fields of config.json; `inner` 0 there means the target's hidden size."""

    stages: int
    vocabulary: int
    hidden: int
    inner: int
    tied: bool


def matches(config: Mapping[str, Any]) -> bool:
    """Whether a config.json announces an MLP speculator."""
    return config.get("model_type") == "mlp_speculator"


def read(folder: ModelFolder) -> HeadCheckpoint:
    """The speculator in a folder.

    Raises:
        ModelError: a key or tensor is missing, unexpected or misshapen; n_predict and the tensors disagree; tied
            tensors that differ.
    """
    where, config = folder.name(), folder.config
    sizes = _sizes(config, where)
    tensors = read_tensors(folder)
    prefix = PREFIX if any(name.startswith(PREFIX) for name in tensors) else ""
    _require_stages(tensors, prefix, sizes, where)
    answer = take(tensors, _slots(sizes, prefix), where)
    for name, tensor in answer.items():
        if not tensor.is_floating_point():
            raise ModelError(f"{where}: the tensor of {name} is {tensor.dtype}, not plain floats")
    if sizes.tied:
        answer = _shared(answer, sizes, where)
    settings = {
        "stages": sizes.stages,
        "vocabulary": sizes.vocabulary,
        "hidden": sizes.hidden,
        "inner": sizes.inner,
        "scale_input": bool(config.get("scale_input", False)),
    }
    return HeadCheckpoint("mlp_speculator", "mlp_speculator", config, answer, settings)


def _sizes(config: Mapping[str, Any], where: str) -> MlpSpeculatorSizes:
    hidden = config.get("emb_dim", config.get("hidden_size"))
    result = {"n_predict": config.get("n_predict"), "vocab_size": config.get("vocab_size"), "emb_dim": hidden}
    for key, value in result.items():
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"{where}: config.json's {key} must be a positive integer, not {value!r}")
    stages, tied = int(result["n_predict"] or 0), bool(config.get("tie_weights", False))
    if tied and stages < 2:
        raise ModelError(f"{where}: config.json says tie_weights, but n_predict {stages} leaves nothing to tie")
    size = int(hidden or 0)
    return MlpSpeculatorSizes(stages, int(result["vocab_size"] or 0), size, int(config.get("inner_dim") or size), tied)


def _require_stages(tensors: Mapping[str, Tensor], prefix: str, sizes: MlpSpeculatorSizes, where: str) -> None:
    """The number of stages by the tensors; a tied file may hold only two of the projections."""
    places = [STAGE.fullmatch(name.removeprefix(prefix)) for name in tensors]
    count = 1 + max((int(place[1]) for place in places if place), default=-1)
    if count != sizes.stages and not (sizes.tied and 2 <= count < sizes.stages):
        raise ModelError(
            f"{where}: config.json says n_predict {sizes.stages}, but the tensors have {count} stages; "
            "correct config.json"
        )


def _slots(sizes: MlpSpeculatorSizes, prefix: str) -> list[TensorSpec]:
    inner, vocabulary = sizes.inner, sizes.vocabulary
    slots = []
    for stage in range(sizes.stages):
        shapes = {
            f"emb.{stage}.weight": (f"emb.{stage}", (vocabulary, inner)),
            f"proj.{stage}.weight": (f"proj.{stage}", (inner, inner if stage else sizes.hidden)),
            f"ln.{stage}.weight": (f"norm.{stage}.weight", (inner,)),
            f"ln.{stage}.bias": (f"norm.{stage}.bias", (inner,)),
            f"head.{stage}.weight": (f"head.{stage}", (vocabulary, inner)),
        }
        for published, (name, shape) in shapes.items():
            copy = sizes.tied and stage > UNTIED[published.partition(".")[0]]
            slots.append(TensorSpec(prefix + published, name, shape, optional=copy))
    return slots


def _shared(tensors: Mapping[str, Tensor], sizes: MlpSpeculatorSizes, where: str) -> dict[str, Tensor]:
    """Every stage's names, tied ones with the first copy; raises ModelError if a stored copy is not equal to it."""
    whole = dict(tensors)
    for stage in range(1, sizes.stages):
        for name in ("emb.{}", "head.{}", "norm.{}.weight", "norm.{}.bias", "proj.{}"):
            first = 1 if name.startswith("proj") else 0
            own, shared = name.format(stage), tensors[name.format(first)]
            if own in tensors and not torch.equal(tensors[own], shared):
                raise ModelError(
                    f"{where}: config.json says tie_weights, but {own} is not {name.format(first)}; "
                    "set tie_weights to false"
                )
            whole[own] = shared
    return whole


LAYOUT: Final = CheckpointLayout("mlp_speculator", matches, read)
