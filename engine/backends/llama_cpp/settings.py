"""An arm's settings for llama.cpp; options of a proposer keep the engine's names (`common_params_speculative`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engine.backends.converted.settings import EngineWords, ProcessSettings, outside_of, process_settings
from engine.backends.engine_spec import EngineSpec
from engine.backends.outside import OutsideAccess
from engine.core.errors import InvalidRequest
from engine.core.options import OptionType, ScalarOption
from engine.core.types import Protocol

WIDTH: Final = "n_max"
_COPIED: Final[Mapping[str, OptionType]] = {"size_n": ScalarOption(12, 1, 64), "min_hits": ScalarOption(1, 1, 64)}
WORDS: Final = EngineWords(
    name="llama.cpp",
    backend="llama_cpp",
    folders="gguf",
    kinds={
        "draft_model": {
            "p_min": ScalarOption(0.0, 0, 1),
            "n_min": ScalarOption(0, 0, 64),
            "probabilistic": ScalarOption(False),
        },
        "ngram_simple": _COPIED,
        "ngram_map_k": _COPIED,
        "ngram_map_k4v": _COPIED,
        "ngram_mod": {"n_match": ScalarOption(24, 1, 64), "n_min": ScalarOption(0, 0, 64)},
    },
    width=WIDTH,
    most=64,
)
WAYS: Final[Mapping[str, str]] = {
    "draft_model": "draft-simple",
    "ngram_simple": "ngram-simple",
    "ngram_map_k": "ngram-map-k",
    "ngram_map_k4v": "ngram-map-k4v",
    "ngram_mod": "ngram-mod",
}
"""The engine's names of the proposers."""
SYNTHETIC: Final = "synth"
"""Begins the engine's options that replace verification by an acceptance that the user chooses."""


def settings_of(plan: EngineSpec) -> ProcessSettings:
    """The arm's settings.

    Raises:
        InvalidRequest: a setting that the engine lacks; the message states the fix.
    """
    for name in plan.options:
        if name.startswith(SYNTHETIC):
            raise InvalidRequest(
                f"proposer {plan.proposer}: {name} replaces verification by an acceptance that you choose, so the "
                "tokens are not the target's; remove it"
            )
    settings = process_settings(plan, WORDS)
    if draws(settings) and plan.protocol is Protocol.GUMBEL:
        raise InvalidRequest("proposer draft_model: drawn drafts do not keep plain's tokens; use verifier: chain")
    if settings.speculative.get("n_min", 0) > settings.gamma:
        raise InvalidRequest(f"proposer {plan.proposer}: n_min must be at most gamma, {settings.gamma}")
    if copies(settings) and settings.kind != "ngram_mod":
        renamed = {"size_m" if name == WIDTH else name: value for name, value in settings.speculative.items()}
        return replace(settings, speculative=renamed)
    return settings


def draws(settings: ProcessSettings) -> bool:
    """True if drafts are drawn from q, which rejection sampling verifies; others must equal the target's draws."""
    return bool(settings.speculative.get("probabilistic"))


def copies(settings: ProcessSettings) -> bool:
    """True if drafts are copied from earlier text."""
    return settings.kind is not None and settings.kind != "draft_model"


def shares(settings: ProcessSettings) -> bool:
    """True if drafts depend on other requests: ngram-mod has one pool for all of them."""
    return settings.kind == "ngram_mod"


def way_of(settings: ProcessSettings) -> str:
    """The engine's name of the way of speculating."""
    return "none" if settings.kind is None else WAYS[settings.kind]


def outside(engine: Mapping[str, Any], _options: Mapping[str, Any]) -> tuple[OutsideAccess, ...]:
    """The interpreter and the folders that an arm's engine settings name."""
    return outside_of(engine, WORDS.folders)
