"""Find the parameter that an engine ignored, from rows with unexpected probabilities.

Each hypothesis turns off or replaces one of the request's parameters; the result
is the first hypothesis that explains nine tenths of the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from audit.checks.honoured.rows import TokenComparison
from engine.core.types import SamplingParams

LOOKED_AT: Final = 64
"""Number of evenly spaced rows to examine; a cause that explains these explains the rest."""
EXPLAINED: Final = 0.9
CLOSE: Final = 0.002
TOO_SHORT: Final = "as if the answer were still shorter than min_tokens"
DEGENERATE: Final = 0.98
"""If this share of probabilities is 0 or 1, the rows count as argmax."""

OFF: Final[Mapping[str, Any]] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": (),
    "bad_words": (),
    "min_tokens": 0,
    "structured": None,
}
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "truncation": ("top_k", "top_p", "min_p"),
    "penalty": ("repetition_penalty", "presence_penalty", "frequency_penalty"),
    "mask": ("logit_bias", "bad_words", "min_tokens", "structured"),
}


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Sampling parameters that the engine may have used instead."""

    name: str
    sampling: SamplingParams


def hypotheses(sampling: SamplingParams) -> tuple[Hypothesis, ...]:
    """The request's parameters with one active parameter left out, or with min_tokens never reached."""
    on = active(sampling)
    single = [Hypothesis(f"as if {key} were not set", without(sampling, (key,))) for key in on]
    several = [
        Hypothesis(f"as if no {name} were set", without(sampling, keys))
        for name, keys in GROUPS.items()
        if len(set(keys) & set(on)) > 1
    ]
    bare = SamplingParams(temperature=1.0, max_new_tokens=sampling.max_new_tokens, seed=sampling.seed)
    late = [Hypothesis(TOO_SHORT, replace(sampling, min_tokens=sampling.max_new_tokens))] if sampling.min_tokens else []
    return (*single, *late, *several, Hypothesis("as if no parameter were set", bare))


def active(sampling: SamplingParams) -> tuple[str, ...]:
    """The names of the parameters that are on."""
    return tuple(key for key, value in OFF.items() if getattr(sampling, key) != value)


def without(sampling: SamplingParams, keys: Sequence[str]) -> SamplingParams:
    """The parameters with some of them off."""
    return replace(sampling, **{key: OFF[key] for key in keys})


def cause(wrong: Sequence[TokenComparison]) -> str:
    """The hypothesis that explains the rows, in words."""
    seen = [wrong[i] for i in np.unique(np.linspace(0, len(wrong) - 1, LOOKED_AT).astype(int))]
    if any(item.row is None for item in seen):
        return "the rows are not recorded; record: full tells which parameter"
    for hypothesis in hypotheses(seen[0].sampling):
        if np.mean([_explains(item, hypothesis) for item in seen]) >= EXPLAINED:
            return hypothesis.name
    if np.mean([min(item.said, 1.0 - item.said) < CLOSE for item in seen]) >= DEGENERATE:
        return "all mass on one token, as at a temperature near 0"
    return "no parameter that was left out explains them: the values in effect are none that the request has"


def _explains(comparison: TokenComparison, hypothesis: Hypothesis) -> bool:
    value = comparison.under(hypothesis.sampling)
    return value is not None and abs(value - comparison.said) <= CLOSE
