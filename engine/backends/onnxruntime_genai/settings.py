"""An arm's settings for onnxruntime-genai; a proposer's options keep its names (`set_speculative_options`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.backends.converted.settings import EngineWords, ProcessSettings, outside_of, process_settings
from engine.backends.engine_spec import EngineSpec
from engine.backends.outside import OutsideAccess
from engine.core.options import OptionType, ScalarOption

MOST_DRAFTS: Final = 16
"""The engine's own limit."""
ADAPTIVE: Final = "min_adaptive_k"
_SHARED: Final[Mapping[str, OptionType]] = {
    ADAPTIVE: ScalarOption(0, 0, MOST_DRAFTS),
    "cooldown": ScalarOption(False),
}
WORDS: Final = EngineWords(
    name="onnxruntime-genai",
    backend="onnxruntime_genai",
    folders="onnx",
    kinds={
        "draft_model": _SHARED,
        "ngram": {"ngram_size": ScalarOption(3, 2, 16), "ngram_chained_lookup": ScalarOption(False), **_SHARED},
    },
    width="max_draft_tokens",
    most=MOST_DRAFTS,
)


def settings_of(plan: EngineSpec) -> ProcessSettings:
    """The arm's settings.

    Raises:
        InvalidRequest: a setting that the engine lacks; the message states the fix.
    """
    return process_settings(plan, WORDS)


def bounded(settings: ProcessSettings) -> bool:
    """True if no round drafts more than gamma; an adaptive width grows to the engine's limit."""
    return not settings.speculative.get(ADAPTIVE)


def outside(engine: Mapping[str, Any], _options: Mapping[str, Any]) -> tuple[OutsideAccess, ...]:
    """The interpreter and the folders that an arm's engine settings name."""
    return outside_of(engine, WORDS.folders)
