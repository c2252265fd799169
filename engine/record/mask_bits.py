"""Masks of a grammar as bits, and the account of an answer's masks that were made a second time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Mask
from engine.record.rows.row_digests import digests


def packed(masks: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """[E, ceil(V / 8)] the bits of masks [E, V], least significant bit first."""
    return np.packbits(masks, axis=-1, bitorder="little")


def unpacked(bits: NDArray[np.uint8], vocabulary: int) -> Mask:
    """The inverse of `packed`."""
    return np.unpackbits(bits, axis=-1, count=vocabulary, bitorder="little").astype(np.bool_)


def second_masks(rows: Mask, tokens: Sequence[int], ends: Collection[int]) -> Mapping[str, Any]:
    """The account of masks [E, V] on an answer's tokens [E]: their digests and numbers of tokens, the first token that
    they forbid, and whether one of `ends` ended the answer.
    """
    return {
        "masks": [f"{int(value):016x}" for value in digests(packed(rows))],
        "counts": [int(count) for count in rows.sum(axis=1)],
        "refused": next((at for at, token in enumerate(tokens) if not rows[at, token]), None),
        "whole": tokens[-1] in ends,
    }
