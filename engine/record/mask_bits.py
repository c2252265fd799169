"""Masks of a grammar as bits, without the formats around them."""

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Mask


def packed(masks: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """[E, ceil(V / 8)] the bits of masks [E, V], least significant bit first."""
    return np.packbits(masks, axis=-1, bitorder="little")


def unpacked(bits: NDArray[np.uint8], vocabulary: int) -> Mask:
    """The inverse of `packed`."""
    return np.unpackbits(bits, axis=-1, count=vocabulary, bitorder="little").astype(np.bool_)
