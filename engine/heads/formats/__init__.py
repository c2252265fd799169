"""Published layouts of draft heads, one file each.

A layout is added by one file, one line in `REGISTRY` and one docs page. Order
matters: the first layout that recognises a config.json reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.core.registry import resolve
from engine.heads.checkpoint import CheckpointLayout

REGISTRY: Final[Mapping[str, str]] = {
    "dflash": "engine.heads.formats.dflash:LAYOUT",
    "eagle": "engine.heads.formats.eagle:LAYOUT",
    "eagle3": "engine.heads.formats.eagle3:LAYOUT",
    "eagle3_speculators": "engine.heads.formats.eagle3:SPECULATORS",
    "medusa": "engine.heads.formats.medusa:LAYOUT",
    "mimo_mtp": "engine.heads.formats.mimo:LAYOUT",
    "mlp_speculator": "engine.heads.formats.mlp_speculator:LAYOUT",
    "qwen3_next_mtp": "engine.heads.formats.mtp:QWEN3_NEXT_LAYOUT",
    "deepseek_mtp": "engine.heads.formats.mtp:DEEPSEEK",
}


def layout_of(config: Mapping[str, Any]) -> CheckpointLayout | None:
    """The layout that a config.json announces; None for a model that runs alone."""
    for name in REGISTRY:
        layout: CheckpointLayout = resolve(REGISTRY, name, "checkpoint layout")
        if layout.matches(config):
            return layout
    return None
