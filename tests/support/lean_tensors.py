"""The lean model of a configuration and tensors in memory."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.models.decoder import fused_weights
from engine.models.decoder.lean import LeanModel
from engine.models.lean_weights import LeanConfig, LeanWeights, check_tensors, read_config
from engine.models.numerics.devices import CPU
from engine.models.numerics.interface import Numerics


def build_weights(
    config: LeanConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device = CPU
) -> LeanWeights:
    """Copies of checked tensors, in `dtype` on `device`, whose layers are fused once."""
    kind = fused_weights.WeightFormat(dtype, device)
    layers = tuple(fused_weights._layers(config, tensors, kind))
    return replace(fused_weights.mapped_weights(config, tensors, kind, "a test's tensors"), layers=layers)


def from_tensors(
    document: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    where: str = "config.json",
    numerics: Numerics | None = None,
) -> LeanModel:
    """A model from a parsed config.json and tensors by their published names.

    Raises:
        ModelError: the configuration is not supported or the tensors do not fit it.
    """
    config = read_config(document, where)
    check_tensors(config, tensors, where)
    return LeanModel(config, build_weights(config, tensors, dtype), numerics=numerics)
