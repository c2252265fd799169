"""The lean model of a configuration and tensors in memory."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.models.decoder.fused_weights import build_weights
from engine.models.decoder.lean import LeanModel
from engine.models.lean_weights import check_tensors, read_config
from engine.models.numerics.interface import Numerics


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
