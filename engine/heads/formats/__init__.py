"""Published layouts of draft heads, one file each.

A layout is added by one file, one line in `engine.core.registry.HEAD_FORMATS` and
one docs page. Order matters: the first layout that recognises a config.json reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from engine.core.registry import HEAD_FORMATS, resolve

if TYPE_CHECKING:
    from engine.heads.checkpoint import CheckpointLayout

REGISTRY: Final = HEAD_FORMATS


def layout_of(config: Mapping[str, Any]) -> CheckpointLayout | None:
    """The layout that a config.json announces; None for a model that runs alone."""
    for name in REGISTRY:
        layout: CheckpointLayout = resolve(REGISTRY, name, "checkpoint layout")
        if layout.matches(config):
            return layout
    return None
