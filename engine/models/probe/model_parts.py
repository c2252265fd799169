"""A probe's inputs: one model's own matrices, norms and head shapes, and fixed data.

Shapes decide which kernel a library picks, so the model's own are used; the weights are the model's too, but their
values hardly matter. Activations come from a generator with a fixed seed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.models.lean_weights import LeanConfig, LeanWeights, rope_frequencies
from engine.models.numerics.interface import Affine, HeadSizes

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers as wide as a float, by its size in bytes."""


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The parts of a decoder that its arithmetic works on.

    affines: one matrix of every distinct shape, by the name of the first that has it.
    norm: weight [hidden] of the final norm.
    ffn: half the width of what `gate` gets.
    qk_norm: queries and keys are normed too.
    frequencies: [head_dim / 2] float64 of the rotary embedding.
    """

    affines: Mapping[str, Affine]
    norm: Tensor
    eps: float
    ffn: int
    qk_norm: bool
    heads: HeadSizes
    frequencies: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        return self.norm.dtype

    @property
    def device(self) -> torch.device:
        """The weights' device."""
        return self.norm.device

    def draw(self, seed: int, *shape: int) -> Tensor:
        """Standard normal activations: equal seeds and shapes give equal ones."""
        values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        return torch.from_numpy(values).to(self.device, self.dtype)


def parts_of(config: LeanConfig, weights: LeanWeights) -> ModelParts:
    """The parts of a model."""
    return ModelParts(
        affines=_distinct(weights),
        norm=weights.norm,
        eps=config.eps,
        ffn=config.ffn,
        qk_norm=config.qk_norm,
        heads=HeadSizes(config.heads, config.kv_heads, config.head_dim, config.context),
        frequencies=rope_frequencies(config),
    )


def _distinct(weights: LeanWeights) -> dict[str, Affine]:
    mapping: dict[tuple[torch.Size, bool], str] = {}
    affines = {}
    for name, affine in _named(weights):
        kind = (affine.weight.shape, affine.bias is None)
        if kind not in mapping:
            mapping[kind] = name
            affines[name] = affine
    return affines


def _named(weights: LeanWeights) -> Iterator[tuple[str, Affine]]:
    # the shapes of all layers are the same
    layer = next(iter(weights.layers))
    yield from (("qkv", layer.qkv), ("out", layer.out), ("gate_up", layer.gate_up), ("down", layer.down))
    yield "head", Affine(weights.head, None)


@dataclass(frozen=True, slots=True)
class RowDifference:
    """The first row that differs, and in how many of its numbers."""

    row: int
    numbers: int
    of: int

    def __str__(self) -> str:
        return f"{self.numbers} of {self.of} numbers differ"


def difference(ours: Tensor, theirs: Tensor) -> RowDifference | None:
    """The first of rows [N, ...] whose bits differ; None if all are the same. 0 and -0 differ, equal NaNs do not."""
    kind = BITS[ours.element_size()]
    unequal = ours.contiguous().view(kind) != theirs.contiguous().view(kind)
    rows = unequal.reshape(len(ours), -1).sum(1)
    wrong = torch.nonzero(rows)
    if not len(wrong):
        return None
    row = int(wrong[0, 0])
    return RowDifference(row, int(rows[row]), unequal[row].numel())
