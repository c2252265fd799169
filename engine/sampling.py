"""The only place where logits become a distribution, in float64.

Order, the one of vLLM's V1 sampler: logit bias, bad words and minimum length,
penalties, temperature, min-p, top-k, top-p. Verification, drafting, plain
decoding and replay all call `transform`, so a transform cannot be missing from
one of them. Knows nothing about models or random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidRequest, ModelError
from engine.types import Floats, SamplingParams


@dataclass(frozen=True, slots=True)
class Transformed:
    """One row. `scores` [V]: before temperature and truncation; `p` [V]: the distribution."""

    scores: Floats
    p: Floats


def transform(
    logits: NDArray[np.floating[Any]],
    history: Sequence[int],
    n_prompt: int,
    params: SamplingParams,
    eos_ids: tuple[int, ...],
) -> Transformed:
    """The distribution of the token that follows `history`.

    Args:
        logits: [V] one row as the model gave it.
        history: prompt and every token before the position, drafted ones on the path included.
        n_prompt: how many of `history` are the prompt.
        params: the request's sampling parameters.
        eos_ids: the model's end tokens, masked while `min_tokens` is not reached.

    Raises:
        InvalidRequest: the masks leave no token.
        ModelError: the model gave NaN or infinity.
    """
    scores = penalise(logits.astype(np.float64), history, n_prompt, params, eos_ids)
    largest = scores.max()
    if largest == -np.inf:
        raise InvalidRequest("every token is masked: relax bad_words, min_tokens or logit_bias")
    if not np.isfinite(largest):
        raise ModelError(f"a logit of the model is not finite ({largest}); try float32 or float64")
    if params.greedy:
        return Transformed(scores, one_hot(int(np.argmax(scores)), len(scores)))
    p = softmax(scores / params.temperature)
    return Transformed(scores, truncate(p, params))


def penalise(
    scores: Floats, history: Sequence[int], n_prompt: int, params: SamplingParams, eos_ids: tuple[int, ...]
) -> Floats:
    """Bias, masks and penalties, in place on a float64 row."""
    for token, bias in params.logit_bias:
        scores[token] += bias
    _mask_bad_words(scores, history, n_prompt, params.bad_words)
    if len(history) - n_prompt < params.min_tokens:
        blocked = params.stop_token_ids if params.ignore_eos else (*eos_ids, *params.stop_token_ids)
        scores[list(blocked)] = -np.inf
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(history, dtype=np.int64))
        penalty = params.repetition_penalty
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    if params.presence_penalty or params.frequency_penalty:
        tokens, counts = np.unique(np.asarray(history[n_prompt:], dtype=np.int64), return_counts=True)
        scores[tokens] -= params.presence_penalty + params.frequency_penalty * counts
    return scores


def _mask_bad_words(
    scores: Floats, history: Sequence[int], n_prompt: int, bad_words: tuple[tuple[int, ...], ...]
) -> None:
    """Forbid the last token of each sequence whose beginning ends the generated tokens."""
    for word in bad_words:
        start = word[:-1]
        generated = history[max(n_prompt, len(history) - len(start)) :]
        if tuple(generated) == start:
            scores[word[-1]] = -np.inf


def softmax(scores: Floats) -> Floats:
    """The softmax of one row."""
    weights = np.exp(scores - np.max(scores))
    return np.asarray(weights / weights.sum())


def log_sum_exp(rows: Floats) -> Floats:
    """[E] log of the summed exponentials of each row [E, V]; each row has a finite entry.

    Written out because scipy's general version costs ten times as much per decoded token.
    """
    largest = rows.max(axis=-1, keepdims=True)
    return np.asarray(largest[..., 0] + np.log(np.exp(rows - largest).sum(axis=-1)))


def truncate(p: Floats, params: SamplingParams) -> Floats:
    """Min-p, then top-k, then top-p, renormalised; ties at a threshold are kept."""
    if params.min_p > 0:
        p = np.where(p >= params.min_p * p.max(), p, 0.0)
    if 0 < params.top_k < len(p):
        p = np.where(p >= np.partition(p, -params.top_k)[-params.top_k], p, 0.0)
    p = p / p.sum()
    if params.top_p < 1:
        p = _nucleus(p, params.top_p)
    return np.asarray(p)


def _nucleus(p: Floats, mass: float) -> Floats:
    """The smallest set of most likely tokens that holds `mass`, lowest ids first among equals."""
    order = np.argsort(-p, kind="stable")
    before = np.cumsum(p[order]) - p[order]
    kept = order[before < mass]
    nucleus = np.zeros_like(p)
    nucleus[kept] = p[kept]
    return np.asarray(nucleus / nucleus.sum())


def one_hot(token: int, vocabulary: int) -> Floats:
    """[vocabulary] all mass on `token`."""
    row = np.zeros(vocabulary)
    row[token] = 1.0
    return row


def inverse_cdf(weights: Floats, u: float) -> int:
    """The token that u in [0, 1) picks: the smallest id whose cumulative share exceeds u.

    `weights` [V] need not sum to one. Tokens without weight are never picked.
    """
    total = np.cumsum(weights)
    token = int(np.searchsorted(total, u * total[-1], side="right"))
    return min(token, int(np.flatnonzero(weights)[-1]))


def gumbel_argmax(p: Floats, noise: Floats) -> int:
    """The Gumbel-max sample of `p` [V] under given noise [V]: distributed as p."""
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(p) + noise))
