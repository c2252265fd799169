"""Row by row: products, norms, gates and rotations whose rows must not depend on each other.

Each is computed for many rows at once, then again for other numbers of rows, at other places, among other neighbours.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from engine.models.numerics.interface import Affine, Numerics, RopeTables
from engine.models.probe.model_parts import ModelParts, difference

COUNTS = (*range(1, 17), 33, 64)
MANY = 257
"""Rows of the reference call: as many as in a prefill, and not a round number."""
FEW = 16
SEED = 41


def products(mode: Numerics, parts: ModelParts) -> str | None:
    """The first row dependence of a matrix product; None if there is none."""
    for index, (name, affine) in enumerate(parts.affines.items()):
        rows = parts.draw(SEED + index, MANY, affine.weight.shape[1])
        text = row_dependence(mode.matrix(affine), rows)
        if text:
            return f"{name} {_shape(affine)}: {text}"
    return None


def norm(mode: Numerics, parts: ModelParts) -> str | None:
    """The first row dependence of a norm, of the hidden state or of queries and keys."""
    hidden = parts.draw(SEED, MANY, len(parts.norm))
    text = row_dependence(mode.norm(parts.norm, parts.eps, len(parts.norm)), hidden)
    if text or not parts.qk_norm:
        return text
    text = row_dependence(mode.norm(None, parts.eps, parts.heads.head_dim), _turned(parts))
    return f"queries and keys: {text}" if text else None


def gate(mode: Numerics, parts: ModelParts) -> str | None:
    """The first row dependence of an activation."""
    return row_dependence(mode.gate, parts.draw(SEED, MANY, 2 * parts.ffn))


def rotate(mode: Numerics, parts: ModelParts) -> str | None:
    """The first row dependence of a rotation; every row has its own position."""
    positions = min(MANY, parts.heads.context)
    tables = mode.rope(parts.frequencies, positions, parts.dtype)
    rope = RopeTables(tables.cos.to(parts.device)[:, None], tables.sin.to(parts.device)[:, None])
    x = _turned(parts)[:positions]
    whole = mode.rotate(x, rope)
    for count in (item for item in COUNTS if item <= positions):
        start = _start(count, positions)
        piece = slice(start, start + count)
        wrong = difference(mode.rotate(x[piece].clone(), RopeTables(rope.cos[piece], rope.sin[piece])), whole[piece])
        if wrong:
            return f"row {wrong.row} of {count} differs from the same row of {positions}: {wrong}"
    return None


def row_dependence(function: Callable[[Tensor], Tensor], rows: Tensor) -> str | None:
    """How a function of [N, ...] rows depends on their number, place or neighbours; None if it does not."""
    whole = function(rows)
    for count in COUNTS:
        start = _start(count, len(rows))
        # a copy, because a kernel may depend on the address of its input
        wrong = difference(function(rows[start : start + count].clone()), whole[start : start + count])
        if wrong:
            return f"row {wrong.row} of {count} differs from the same row of {len(rows)}: {wrong}"
    # and every row once more, for with several threads it may be a single row where their shares meet
    wrong = difference(torch.cat([function(part.clone()) for part in torch.split(rows, FEW)]), whole)
    if wrong:
        return f"row {wrong.row} of {len(rows)} differs from the same row of {FEW}: {wrong}"
    turned = rows[: max(COUNTS)].flip(0)
    wrong = difference(function(turned).flip(0), whole[: len(turned)])
    return f"row {wrong.row} differs from the same row at another place: {wrong}" if wrong else None


def _start(count: int, rows: int) -> int:
    """A place for `count` of `rows` rows: for even counts the end, where blocked kernels have their remainder."""
    return rows - count if count % 2 == 0 else 127 * count % (rows - count + 1)


def _turned(parts: ModelParts) -> Tensor:
    heads = parts.heads
    return parts.draw(SEED, MANY, heads.heads + heads.kv_heads, heads.head_dim)


def _shape(affine: Affine) -> str:
    rows, columns = affine.weight.shape
    return f"[{rows}, {columns}]"
