"""Published layouts of draft heads, one file each.

A layout is added by one file, one line in `REGISTRY` and one docs page. Order
matters: the first layout that recognises a config.json reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.checkpoints.base import Layout
from engine.registry import resolve

REGISTRY: Final[Mapping[str, str]] = {
    "dflash": "engine.checkpoints.dflash:LAYOUT",
    "eagle": "engine.checkpoints.eagle:LAYOUT",
    "eagle3": "engine.checkpoints.eagle3:LAYOUT",
    "eagle3_speculators": "engine.checkpoints.eagle3:SPECULATORS",
    "medusa": "engine.checkpoints.medusa:LAYOUT",
    "mimo_mtp": "engine.checkpoints.mimo:LAYOUT",
    "mlp_speculator": "engine.checkpoints.mlp_speculator:LAYOUT",
    "qwen3_next_mtp": "engine.checkpoints.mtp:QWEN3_NEXT_LAYOUT",
    "deepseek_mtp": "engine.checkpoints.mtp:DEEPSEEK",
}


def layout_of(config: Mapping[str, Any]) -> Layout | None:
    """The layout that a config.json announces; None for a model that runs alone."""
    for name in REGISTRY:
        layout: Layout = resolve(REGISTRY, name, "checkpoint layout")
        if layout.matches(config):
            return layout
    return None
