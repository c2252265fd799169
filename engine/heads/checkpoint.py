"""A draft head's checkpoint, independent of its published layout.

A head has no embedding or output matrix that could run alone: it drafts with the target's hidden states. A layout reads
one published format strictly: a missing, unexpected or misshapen tensor is an error that names it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from engine.core.errors import ModelError
from engine.models.files.folder import ModelFile, ModelFolder


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """A head as its checkpoint describes it.

    tensors: by this project's names, which the layout's page lists.
    settings: the settings that a proposer needs, by this project's names.
    lossy: acceptance rules declared inside the checkpoint that do not keep the target's law; empty if none.
    """

    layout: str
    family: str
    """The proposer for this head, a key of `engine.proposers.REGISTRY`."""
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any] = field(default_factory=dict)
    lossy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head with its source; `facts` are those of a model: source, dtype, digests."""

    head: HeadCheckpoint
    files: tuple[ModelFile, ...]
    source: str
    resolved: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """One published format: how to recognise its config.json, and how to read it."""

    name: str
    matches: Callable[[Mapping[str, Any]], bool]
    read: Callable[[ModelFolder], HeadCheckpoint]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a layout has: its published name, ours, and its shape."""

    published: str
    name: str
    shape: tuple[int, ...]
    optional: bool = False


def take(tensors: Mapping[str, Tensor], slots: Sequence[TensorSpec], where: str) -> dict[str, Tensor]:
    """The tensors by our names.

    Raises:
        ModelError: the first tensor that is missing, unexpected or of another shape, by its published name.
    """
    known = {slot.published for slot in slots}
    unexpected = sorted(name for name in tensors if name not in known)
    if unexpected:
        raise ModelError(f"{where}: unexpected tensor {unexpected[0]!r}; is this another layout's checkpoint?")
    result = {}
    for slot in slots:
        tensor = tensors.get(slot.published)
        if tensor is None and slot.optional:
            continue
        if tensor is None:
            raise ModelError(f"{where}: tensor {slot.published!r} is missing; restore the checkpoint")
        if tuple(tensor.shape) != slot.shape:
            raise ModelError(
                f"{where}: tensor {slot.published!r} has shape {tuple(tensor.shape)} instead of {slot.shape}"
            )
        result[slot.name] = tensor
    return result
