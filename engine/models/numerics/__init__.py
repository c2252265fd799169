"""Numerics modes: how a model's arithmetic is carried out, one file each.

A mode is added by one file and one line in `engine.core.registry.NUMERICS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from engine.core.registry import NUMERICS, resolve

if TYPE_CHECKING:
    # the registry is read without torch, which a mode imports
    from engine.models.numerics.interface import Numerics

REGISTRY: Final = NUMERICS
AUTO: Final = "auto"
"""Selects the strongest mode of `PREFERENCE` whose probe passes on this machine."""
PREFERENCE: Final = ("ordered", "tiled", "fixed", "fast")
DRAFTING: Final = "drafting"
"""Selects the first of `SWIFTEST` that this machine has, unprobed: for models whose bits decide drafts only."""
SWIFTEST: Final = ("ordered", "fast")
ROUNDED: Final = ("int8",)
"""Modes that change a model's weights, so that no target may run in them."""
FOREIGN: Final = ("fast", AUTO, DRAFTING)
"""The modes for a model with foreign arithmetic."""


def load(name: str) -> Numerics:
    """The mode behind a registered name. Raises InvalidRequest: unknown mode; the message lists the known ones."""
    mode: Numerics = resolve(REGISTRY, name, "numerics mode")()
    return mode
