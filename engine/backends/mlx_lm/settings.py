"""An arm's settings for mlx_lm; gamma is the engine's `num_draft_tokens`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.backends.converted.settings import EngineWords, ProcessSettings, outside_of, process_settings
from engine.backends.engine_spec import EngineSpec
from engine.backends.outside import OutsideAccess

PREFILL: Final = "prefill_step_size"
WORDS: Final = EngineWords(
    name="mlx_lm",
    backend="mlx_lm",
    folders="",
    kinds={"draft_model": {}},
    width="num_draft_tokens",
    most=64,
)


def settings_of(plan: EngineSpec) -> ProcessSettings:
    """The arm's settings.

    Raises:
        InvalidRequest: a setting that the engine lacks; the message states the fix.
    """
    return process_settings(plan, WORDS)


def arguments_of(settings: ProcessSettings) -> dict[str, Any]:
    """The arguments of generation that are the same for all requests of an arm, by the engine's names."""
    given = settings.given
    return {**settings.speculative, **({PREFILL: given[PREFILL]} if PREFILL in given else {})}


def outside(engine: Mapping[str, Any], _options: Mapping[str, Any]) -> tuple[OutsideAccess, ...]:
    """The interpreter that an arm's engine settings name."""
    return outside_of(engine, WORDS.folders)
