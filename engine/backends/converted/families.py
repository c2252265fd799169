"""The models that this project's own converters know: decoders of the families llama, qwen2 and qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.core.errors import ModelError
from engine.models.loading import OpenedSource

FAMILIES: Final = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


def require_known(opened: OpenedSource, kind: str) -> None:
    """Refuse a model that no converter of ours knows; `kind` is the format.

    Raises:
        ModelError: as said.
    """
    problem = unknown(opened.folder.config)
    if problem is not None:
        raise ModelError(f"{opened.folder.name('config.json')}: the converter to {kind} {problem}; use another model")


def unknown(config: Mapping[str, Any]) -> str | None:
    """What the converters do not know in a configuration."""
    family = (config.get("architectures") or ["none"])[0]
    if family not in FAMILIES:
        return f"knows {', '.join(FAMILIES)}, not {family}"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        return f"knows plain rotary positions only, not {rope.get('rope_type', rope.get('type'))}"
    if config.get("hidden_act", "silu") != "silu":
        return f"knows hidden_act silu, not {config['hidden_act']}"
    return "knows no sliding windows" if config.get("use_sliding_window") else None
