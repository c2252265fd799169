"""Sampling parameters in the words of mlx_lm (`make_sampler`, `make_logits_processors`).

Parameters that the engine lacks, or applies in another order than this project, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.backends.converted.seeds import seed_of
from engine.core.types import Request, SamplingParams


def _warm(sampling: SamplingParams) -> bool:
    return sampling.temperature not in (0, 1)


REFUSED: Final[Mapping[str, Callable[[SamplingParams], bool]]] = {
    "structured needs backend native or scripted; mlx_lm has no grammars": lambda s: s.structured is not None,
    "mlx_lm has no bad_words; remove them, or give logit_bias": lambda s: bool(s.bad_words),
    "mlx_lm has no min_tokens; set it to 0": lambda s: s.min_tokens > 0,
    "the library of mlx_lm has no stop strings; use stop_token_ids": lambda s: bool(s.stop),
    "mlx_lm applies top_p before temperature, not after it; use top_p at temperature 1": lambda s: (
        s.top_p < 1 and _warm(s)
    ),
    "mlx_lm applies min_p before temperature, not after it; use min_p at temperature 1": lambda s: (
        s.min_p > 0 and _warm(s)
    ),
    "mlx_lm applies top_p before top_k and min_p, not after them; use top_p alone": lambda s: (
        not s.greedy and s.top_p < 1 and bool(s.top_k or s.min_p)
    ),
}
"""Unsupported parameters, each with the fix."""


def refusal(sampling: SamplingParams) -> str | None:
    """The reason why a request cannot be served, or None."""
    return next((message for message, holds in REFUSED.items() if holds(sampling)), None)


def sampler_arguments(sampling: SamplingParams, vocabulary: int) -> dict[str, Any]:
    """The keywords of `make_sampler`; a top_k of the whole vocabulary is none."""
    if sampling.greedy:
        return {"temp": 0.0}
    return {
        "temp": sampling.temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_k": sampling.top_k if sampling.top_k < vocabulary else 0,
    }


def processor_arguments(request: Request) -> dict[str, Any]:
    """The keywords of `make_logits_processors`; its own windows of 20 tokens would forget, so they hold every token.

    Pairs, not a mapping, for the bias: keys of JSON are texts.
    """
    asked = request.sampling
    window = len(request.prompt) + asked.max_new_tokens
    added: dict[int, float] = {}
    for token, bias in asked.logit_bias:
        added[token] = added.get(token, 0.0) + bias
    found: dict[str, Any] = {"logit_bias": [[token, bias] for token, bias in added.items()]} if added else {}
    values = {
        "repetition": asked.repetition_penalty if asked.repetition_penalty != 1 else 0,
        "presence": asked.presence_penalty,
        "frequency": asked.frequency_penalty,
    }
    for name, value in values.items():
        if value:
            found |= {f"{name}_penalty": value, f"{name}_context_size": window}
    return found


def message_of(request: Request, vocabulary: int, eos_ids: tuple[int, ...]) -> dict[str, Any]:
    """The parameters of one request as the driver reads them."""
    asked = request.sampling
    ends = () if asked.ignore_eos else eos_ids
    return {
        "max_tokens": asked.max_new_tokens,
        "seed": seed_of(request),
        "ends": sorted({*ends, *asked.stop_token_ids}),
        "sampler": sampler_arguments(asked, vocabulary),
        "processors": processor_arguments(request),
    }
