"""Numerics modes: how a model's arithmetic is carried out, one file each.

A mode is added by one file and one line in `REGISTRY`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.core.registry import resolve
from engine.models.numerics.interface import Numerics

REGISTRY: Final[Mapping[str, str]] = {
    "fast": "engine.models.numerics.fast:FastNumerics",
    "fixed": "engine.models.numerics.fixed:FixedNumerics",
    "tiled": "engine.models.numerics.tiled:TiledNumerics",
    "exact": "engine.models.numerics.exact:ExactNumerics",
}
AUTO: Final = "auto"
"""Asks for the strongest mode of `PREFERENCE` whose probe passes on this machine."""
PREFERENCE: Final = ("tiled", "fixed", "fast")


def load(name: str) -> Numerics:
    """The mode behind a registered name.

    Raises:
        InvalidRequest: unknown mode; the message lists those that there are.
    """
    mode: Numerics = resolve(REGISTRY, name, "numerics mode")()
    return mode
