"""Sampling parameters in onnxruntime-genai's words.

Every one is set explicitly, because a model's own configuration would fill the others in (50 for `top_k`). Parameters
that the engine lacks are refused: its setter would raise an error for unknown names, but not for ignored ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.backends.converted.seeds import seed_of
from engine.core.types import Request, SamplingParams

REFUSED: Final[Mapping[str, Callable[[SamplingParams], bool]]] = {
    "structured needs backend native or scripted; this backend drives no grammars of onnxruntime-genai": lambda s: (
        s.structured is not None
    ),
    "onnxruntime-genai has no min_p; set it to 0": lambda s: s.min_p > 0,
    "onnxruntime-genai has no presence_penalty; set it to 0": lambda s: bool(s.presence_penalty),
    "onnxruntime-genai has no frequency_penalty; set it to 0": lambda s: bool(s.frequency_penalty),
    "onnxruntime-genai has no logit_bias; remove it": lambda s: bool(s.logit_bias),
    "onnxruntime-genai has no bad_words; remove them": lambda s: bool(s.bad_words),
    "onnxruntime-genai ends at the model's end tokens; set ignore_eos to false": lambda s: s.ignore_eos,
    "onnxruntime-genai has no stop strings; use stop_token_ids": lambda s: bool(s.stop),
    "min_length of onnxruntime-genai delays the model's end tokens only; use min_tokens or stop_token_ids": lambda s: (
        bool(s.min_tokens and s.stop_token_ids)
    ),
}
"""Unsupported parameters, each with the fix."""


def refusal(sampling: SamplingParams) -> str | None:
    """The reason why a request cannot be served, or None."""
    return next((message for message, holds in REFUSED.items() if holds(sampling)), None)


def search_options(request: Request, vocabulary: int) -> dict[str, Any]:
    """The keywords of `set_search_options`; lengths include the prompt there."""
    asked, prompt = request.sampling, len(request.prompt)
    shared = {
        "max_length": prompt + asked.max_new_tokens,
        "min_length": prompt + asked.min_tokens if asked.min_tokens else 0,
        "repetition_penalty": asked.repetition_penalty,
        "batch_size": 1,
        "num_beams": 1,
    }
    if asked.greedy:
        return {**shared, "do_sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return {
        **shared,
        "do_sample": True,
        "temperature": asked.temperature,
        "top_k": min(asked.top_k, vocabulary),
        "top_p": asked.top_p,
        "random_seed": seed_of(request),
    }
