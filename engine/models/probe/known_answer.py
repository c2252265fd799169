"""A small problem with a known answer, for modes that promise the same bits on every machine.

The problem is made of fractions that every float type holds, by integer
arithmetic alone, so no generator and no rounding comes before the mode. The
digests were computed once; a mode whose arithmetic changes on purpose gets a new
one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from engine.models.cache import CacheShape, aim_at
from engine.models.interface import chain_placement
from engine.models.numerics.devices import CPU, moved
from engine.models.numerics.interface import Affine, HeadSizes, Numerics, RopeTables
from engine.models.probe.model_parts import ModelParts

ANSWERS: Final[Mapping[str, str]] = {
    "exact": "2fc64681af246e14d6c2696a7288e6016dc1fa1ed49cb75bf8b5ee426839cefd",
    "ordered": "ba52b52938acf04ce2b37deac2e4820c6335fa7330b16bf23f9ac841247670c7",
    "int8": "8e6574debc65ede6fab15b426a7c91b8f785b7a3a784136d5e82422c9e374721",
}
"""SHA-256 of the answer by mode."""
TOKENS, HIDDEN = 7, 48
HEADS = HeadSizes(heads=4, kv_heads=2, head_dim=8, context=64)
EPS = 2.0**-20


def known_answer(mode: Numerics, parts: ModelParts) -> str | None:
    """How the digest of the answer differs from the one that every machine gives; None if it does not."""
    result, wanted = digest(mode, parts.device), ANSWERS.get(mode.name, "")
    return None if result == wanted else f"the answer's digest is {result[:12]}, and {wanted[:12]} everywhere else"


@torch.no_grad()
def digest(mode: Numerics, device: torch.device = CPU) -> str:
    """SHA-256 of a mode's results on the problem: products, norm, gate, rotation and attention, one after another."""

    def given(salt: int, *shape: int) -> Tensor:
        return numbers(salt, *shape).to(device)

    x = mode.norm(given(2, HIDDEN), EPS, HIDDEN)(given(1, TOKENS, HIDDEN))
    width = (HEADS.heads + 2 * HEADS.kv_heads) * HEADS.head_dim
    qkv = mode.matrix(Affine(given(3, width, HIDDEN), given(4, width)))(x)
    seen = _attention(mode, qkv.view(TOKENS, -1, HEADS.head_dim))
    hidden = mode.matrix(Affine(given(5, HIDDEN, seen.shape[1]), None))(seen)
    gated = mode.gate(mode.matrix(Affine(given(6, 2 * HIDDEN, HIDDEN), None))(hidden))
    answer = hashlib.sha256()
    for part in (x, qkv, hidden, gated):
        answer.update(part.double().contiguous().cpu().numpy().tobytes())
    return answer.hexdigest()


def _attention(mode: Numerics, qkv: Tensor) -> Tensor:
    frequencies = torch.tensor([1.0, 0.25, 0.0625, 0.015625], dtype=torch.float64)
    tables = moved(mode.rope(frequencies, TOKENS, qkv.dtype), qkv.device)
    turned = HEADS.heads + HEADS.kv_heads
    rotated = mode.rotate(qkv[:, :turned], RopeTables(tables.cos[:, None], tables.sin[:, None]))
    cache = mode.new_cache(CacheShape(1, 1, HEADS.kv_heads, TOKENS, HEADS.head_dim, device=qkv.device), qkv.dtype)
    placement = chain_placement([[0] * TOKENS], [0], cache.trash)
    cache.write(0, cache.open(moved(aim_at(placement), qkv.device)), rotated[:, HEADS.heads :], qkv[:, turned:])
    layout = moved(mode.layout(placement, HEADS, qkv.dtype), qkv.device)
    return mode.attend(rotated[:, : HEADS.heads], mode.windows(cache, layout)[0], layout)


def numbers(salt: int, *shape: int) -> Tensor:
    """Float32 multiples of 2^-9 between -1 and 1, scattered by a multiplicative hash."""
    index = torch.arange(math.prod(shape)) + 100003 * salt
    scattered = index * 2654435761 % 2**32 // 2**22
    return (scattered - 512).view(shape).to(torch.float32) / 512
