"""Sampling parameters in the words of llama.cpp's server.

Every one is set explicitly, and so is the order of the transforms: bias, penalties, temperature, min-p, top-k, top-p.
Parameters that the engine lacks, or gives another meaning, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.backends.converted.seeds import seed_of
from engine.backends.openai.settings import LLAMA_ORDER
from engine.core.types import Request, SamplingParams

REFUSED: Final[Mapping[str, Callable[[SamplingParams], bool]]] = {
    "structured needs backend native or scripted; this backend drives no grammars of llama.cpp": lambda s: (
        s.structured is not None
    ),
    "llama.cpp counts the prompt's tokens in presence_penalty and frequency_penalty, a suite does not; use "
    "repetition_penalty": lambda s: bool(s.presence_penalty or s.frequency_penalty),
    "llama.cpp has no min_tokens; remove it": lambda s: bool(s.min_tokens),
    "llama.cpp has no stop_token_ids; use stop": lambda s: bool(s.stop_token_ids),
    "llama.cpp forbids its end tokens with ignore_eos and does not go on after one; use bad_words": lambda s: (
        s.ignore_eos
    ),
    "llama.cpp forbids single tokens, but not a sequence of bad_words; use single tokens": lambda s: any(
        len(word) > 1 for word in s.bad_words
    ),
}
"""Unsupported parameters, each with the fix."""


def refusal(sampling: SamplingParams) -> str | None:
    """The reason why a request cannot be served, or None."""
    return next((message for message, holds in REFUSED.items() if holds(sampling)), None)


def sampling_body(request: Request, context: int) -> dict[str, Any]:
    """The sampling fields of `/completion`; `context` tokens are all that a penalty can see."""
    asked = request.sampling
    forbidden = [[word[0], False] for word in asked.bad_words]
    return {
        "n_predict": asked.max_new_tokens,
        "temperature": asked.temperature,
        "top_k": asked.top_k,
        "top_p": asked.top_p,
        "min_p": asked.min_p,
        "repeat_penalty": asked.repetition_penalty,
        "repeat_last_n": context,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": [*([token, bias] for token, bias in asked.logit_bias), *forbidden],
        "stop": list(asked.stop),
        "ignore_eos": False,
        "samplers": list(LLAMA_ORDER),
        "seed": seed_of(request),
    }
