"""Sampling parameters as transformers' generation configuration.

The module refuses parameters that transformers would drop or interpret differently, so that both engines have the same
p. It sets every parameter explicitly, because transformers fills unset ones with its own defaults (50 for `top_k`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from transformers import GenerationConfig

from engine.backends.transformers.settings import TransformersSettings, generation_keys
from engine.core.types import SamplingParams

Problem = Callable[[SamplingParams, tuple[int, ...]], bool]
REFUSED: Final[Mapping[str, Problem]] = {
    "structured needs backend native or scripted; transformers has no grammars": lambda s, _: s.structured is not None,
    "transformers has no presence_penalty; set it to 0": lambda s, _: bool(s.presence_penalty),
    "transformers has no frequency_penalty; set it to 0": lambda s, _: bool(s.frequency_penalty),
    "transformers matches bad_words of several tokens against the prompt too; give single tokens": lambda s, _: any(
        len(word) > 1 for word in s.bad_words
    ),
    "transformers ignores an end token among bad_words; use min_tokens or ignore_eos": lambda s, eos: any(
        word[0] in ends(s, eos) for word in s.bad_words
    ),
    "transformers applies min_p after top_p, not before; use one of them": lambda s, _: (
        s.min_p > 0 and s.top_p < 1 and not s.greedy
    ),
}
"""Unsupported parameters, each with the fix."""


def ends(sampling: SamplingParams, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that end a generation."""
    return (*(() if sampling.ignore_eos else eos_ids), *sampling.stop_token_ids)


def refusal(sampling: SamplingParams, eos_ids: tuple[int, ...], settings: TransformersSettings) -> str | None:
    """The reason why a request cannot be served, or None."""
    for message, holds in REFUSED.items():
        if holds(sampling, eos_ids):
            return message
    if sampling.stop and settings.kind in ("draft_model", "early_exit", "universal"):
        return f"transformers runs no stop strings beside proposer {settings.kind}; use stop_token_ids"
    if settings.kind == "universal" and not sampling.plain_scores:
        return "proposer universal applies biases, masks and penalties to the wrong tokens of the draft; remove them"
    return None


def configuration(
    sampling: SamplingParams, eos_ids: tuple[int, ...], settings: TransformersSettings
) -> GenerationConfig:
    """The generation configuration of one request."""
    stops = ends(sampling, eos_ids)
    return GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        eos_token_id=list(stops) or None,
        # there is no padding in a batch of one; transformers warns if it must choose
        pad_token_id=stops[0] if stops else 0,
        use_cache=True,
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
        stop_strings=list(sampling.stop) or None,
        repetition_penalty=sampling.repetition_penalty,
        sequence_bias=_biases(sampling),
        bad_words_ids=[list(word) for word in sampling.bad_words] or None,
        min_new_tokens=sampling.min_tokens or None,
        **_warpers(sampling),
        **generation_keys(settings),
    )


def _biases(sampling: SamplingParams) -> list[list[Any]] | None:
    """Biases of one token add up here; of several entries transformers would take one."""
    added: dict[int, float] = {}
    for token, bias in sampling.logit_bias:
        added[token] = added.get(token, 0.0) + bias
    return [[[token], float(bias)] for token, bias in added.items()] or None


def _warpers(sampling: SamplingParams) -> dict[str, Any]:
    if sampling.greedy:
        return {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
    return {
        "do_sample": True,
        "temperature": float(sampling.temperature),
        "top_k": sampling.top_k,
        "top_p": float(sampling.top_p),
        "min_p": float(sampling.min_p) or None,
    }
