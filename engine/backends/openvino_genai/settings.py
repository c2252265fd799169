"""An arm's settings for OpenVINO GenAI; options of a proposer keep the engine's names (`GenerationConfig`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engine.backends.converted.settings import EngineWords, ProcessSettings, outside_of, process_settings
from engine.backends.engine_spec import EngineSpec
from engine.backends.outside import OutsideAccess
from engine.core.errors import InvalidRequest
from engine.core.options import ScalarOption

THRESHOLD: Final = "assistant_confidence_threshold"
WIDTH: Final = "num_assistant_tokens"
WORDS: Final = EngineWords(
    name="openvino-genai",
    backend="openvino_genai",
    folders="openvino",
    kinds={
        "draft_model": {THRESHOLD: ScalarOption(0.0, 0, 1)},
        "prompt_lookup": {"max_ngram_size": ScalarOption(3, 1, 16)},
    },
    width=WIDTH,
    most=64,
)


def settings_of(plan: EngineSpec) -> ProcessSettings:
    """The arm's settings.

    Raises:
        InvalidRequest: a setting that the engine lacks; the message states the fix.
    """
    settings = process_settings(plan, WORDS)
    if counted(settings) and plan.rows > 1:
        raise InvalidRequest("engine.counters: the engine counts one request at a time only; set batch_size: 1")
    # the engine takes a width or a threshold
    taken = {key: value for key, value in settings.speculative.items() if key != THRESHOLD}
    if not bounded(settings):
        taken = {THRESHOLD: settings.speculative[THRESHOLD]}
    return replace(settings, speculative=taken)


def bounded(settings: ProcessSettings) -> bool:
    """True if no step drafts more than gamma; with a threshold, the draft's confidence alone ends a draft."""
    return not settings.speculative.get(THRESHOLD)


def counted(settings: ProcessSettings) -> bool:
    """True if the engine's own counters are read, which gives no log-probabilities."""
    return bool(settings.given.get("counters", False))


def outside(engine: Mapping[str, Any], _options: Mapping[str, Any]) -> tuple[OutsideAccess, ...]:
    """The interpreter and the folders that an arm's engine settings name."""
    return outside_of(engine, WORDS.folders)
