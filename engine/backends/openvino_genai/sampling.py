"""Sampling parameters in the words of OpenVINO GenAI.

Every one is set explicitly. Parameters that the engine lacks, or would not apply, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.backends.converted.seeds import seed_of
from engine.core.types import Request, SamplingParams

REFUSED: Final[Mapping[str, Callable[[SamplingParams], bool]]] = {
    "structured needs backend native or scripted; this backend drives no grammars of openvino-genai": lambda s: (
        s.structured is not None
    ),
    "openvino-genai has no logit_bias; remove it": lambda s: bool(s.logit_bias),
    "openvino-genai has no bad_words; remove them": lambda s: bool(s.bad_words),
    "this backend gives token ids, so stop strings of openvino-genai are not used; use stop_token_ids": lambda s: bool(
        s.stop
    ),
}
"""Unsupported parameters, each with the fix."""


def refusal(sampling: SamplingParams) -> str | None:
    """The reason why a request cannot be served, or None."""
    return next((message for message, holds in REFUSED.items() if holds(sampling)), None)


def raw(sampling: SamplingParams) -> bool:
    """True if the engine's log-probabilities, which it takes after all transforms, are those of the raw rows."""
    untruncated = not sampling.top_k and sampling.top_p == 1 and not sampling.min_p
    return sampling.plain_scores and (sampling.greedy or (sampling.temperature == 1 and untruncated))


def generation_options(request: Request, eos_ids: tuple[int, ...]) -> dict[str, Any]:
    """The keywords of `GenerationConfig`; end tokens beyond the first are stop tokens there."""
    asked = request.sampling
    ends = () if asked.ignore_eos else eos_ids
    shared = {
        "max_new_tokens": asked.max_new_tokens,
        "min_new_tokens": asked.min_tokens,
        "ignore_eos": asked.ignore_eos,
        "eos_token_id": eos_ids[0] if eos_ids else -1,
        "stop_token_ids": sorted({*ends, *asked.stop_token_ids}),
        "repetition_penalty": asked.repetition_penalty,
        "presence_penalty": asked.presence_penalty,
        "frequency_penalty": asked.frequency_penalty,
        "logprobs": 1,
        "do_sample": not asked.greedy,
    }
    if asked.greedy:
        return shared
    sampled = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "min_p": asked.min_p,
        "rng_seed": seed_of(request),
    }
    return {**shared, **sampled, **({"top_k": asked.top_k} if asked.top_k else {})}
