"""The only place where logits become a distribution, in float64.

The order is that of vLLM's V1 sampler: the grammar's mask, logit bias, bad words and minimum length, penalties,
temperature, min-p, top-k, top-p. Verification, drafting, plain decoding and replay all call `transform`, so none of
them can miss a transform. The target's rows of one step are transformed on demand; each row's history holds the drafted
tokens on its path, so that penalties and masks apply to them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import InvalidRequest, ModelError, NoTokenLeft
from engine.core.trees import path_tokens
from engine.core.types import Floats, Mask, SamplingParams, Tree

BLOCK: Final = 2**19
"""Numbers transformed together: as many as fit in a processor's cache."""
UNSORTED: Final = 1024
"""Size of a vocabulary above which only its likely tokens are sorted."""
SHARES: Final = (2.0**-7, 2.0**-12, 2.0**-18)
"""Shares of the largest probability that a likely token has; the next one is tried where the tokens hold too little."""
RESERVE: Final = 1e-9
"""More than the rounding of a sum of probabilities."""


@dataclass(frozen=True, slots=True)
class TransformedRow:
    """One row. `scores` [V]: before temperature and truncation; `p` [V]: the distribution."""

    scores: Floats
    p: Floats


def transform(
    logits: NDArray[np.floating[Any]],
    history: Sequence[int],
    n_prompt: int,
    params: SamplingParams,
    eos_ids: tuple[int, ...],
    allowed: Mask | None = None,
) -> TransformedRow:
    """The distribution of the token that follows `history`.

    Args:
        logits: [V] one row as the model gave it.
        history: prompt and every token before the position, drafted ones on the path included.
        n_prompt: how many of `history` are the prompt.
        params: the request's sampling parameters.
        eos_ids: the model's end tokens, masked while `min_tokens` is not reached.
        allowed: [V] the grammar's mask after `history`; required if the parameters have a grammar.

    Raises:
        NoTokenLeft: the masks leave no token.
        InvalidRequest: the grammar's mask is missing.
        ModelError: the model gave NaN or infinity.
    """
    scores = logits.astype(np.float64)
    if params.structured is not None:
        # before all else, as vLLM does it
        scores[~_required(allowed)] = -np.inf
    if not params.plain_scores:
        penalise(scores, history, n_prompt, params, eos_ids)
    largest = float(np.maximum.reduce(scores))
    _require_finite(largest)
    if params.greedy:
        return TransformedRow(scores, one_hot(int(scores.argmax()), len(scores)))
    return TransformedRow(scores, truncate(_weigh(scores, largest, params.temperature), params))


def _required(allowed: Mask | None) -> Mask:
    if allowed is None:
        raise InvalidRequest(
            "the parameters have a grammar, and no mask came with the row: this reader ignores grammars"
        )
    return allowed


def _require_finite(largest: float) -> None:
    if largest == -math.inf:
        raise NoTokenLeft("every token is masked: relax bad_words, min_tokens, logit_bias or structured")
    if not math.isfinite(largest):
        raise ModelError(f"a logit of the model is not finite ({largest}); try float32 or float64")


def _weigh(scores: Floats, largest: float, temperature: float) -> Floats:
    """`softmax(scores / temperature)`, whose maximum is known: division keeps the order."""
    weights = np.exp(scores / temperature - largest / temperature)
    return np.asarray(weights / np.add.reduce(weights))


def plain_laws(logits: NDArray[np.floating[Any]], params: SamplingParams) -> Floats:
    """[E, V] p of every row [E, V], bit for bit as `transform` gives it, where no bias, mask or penalty is on.

    Raises:
        InvalidRequest: as `transform`.
        ModelError: as `transform`.
    """
    laws = np.empty(logits.shape)
    rows = max(1, BLOCK // max(1, logits.shape[1]))
    for begin in range(0, len(logits), rows):
        _fill_laws(laws[begin : begin + rows], logits[begin : begin + rows].astype(np.float64), params)
    return laws


def _fill_laws(laws: Floats, scores: Floats, params: SamplingParams) -> None:
    largest = scores.max(axis=1)
    for item in largest[~np.isfinite(largest)]:
        _require_finite(float(item))
    if params.greedy:
        laws[:] = 0.0
        laws[np.arange(len(laws)), scores.argmax(axis=1)] = 1.0
        return
    scores /= params.temperature
    scores -= (largest / params.temperature)[:, None]
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    if params.min_p > 0:
        scores[~(scores >= params.min_p * scores.max(axis=1, keepdims=True))] = 0.0
    if 0 < params.top_k < scores.shape[1]:
        scores[~(scores >= np.partition(scores, -params.top_k, axis=1)[:, -params.top_k, None])] = 0.0
    np.divide(scores, scores.sum(axis=1, keepdims=True), out=laws)
    if params.top_p < 1:
        order = np.argsort(-laws, axis=1, kind="stable")
        falling = np.take_along_axis(laws, order, axis=1)
        falling[~(np.cumsum(falling, axis=1) - falling < params.top_p)] = 0.0
        np.put_along_axis(laws, order, falling, axis=1)
        laws /= laws.sum(axis=1, keepdims=True)


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
        seen = np.fromiter(set(history), dtype=np.int64)
        penalty = params.repetition_penalty
        scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    if params.presence_penalty or params.frequency_penalty:
        counter = Counter(history[n_prompt:])
        tokens = np.fromiter(counter.keys(), dtype=np.int64)
        counts = np.fromiter(counter.values(), dtype=np.int64)
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
    weights = np.exp(scores - np.maximum.reduce(scores))
    return np.asarray(weights / np.add.reduce(weights))


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
    p = p / np.add.reduce(p)
    if params.top_p < 1:
        p = _nucleus(p, params.top_p)
    return np.asarray(p)


def _nucleus(p: Floats, mass: float) -> Floats:
    """The smallest set of most likely tokens that holds `mass`, lowest ids first among equals."""
    order = _most_likely(p, mass)
    falling = p[order]
    kept = order[falling.cumsum() - falling < mass]
    nucleus = np.zeros(len(p))
    nucleus[kept] = p[kept]
    return np.asarray(nucleus / np.add.reduce(nucleus))


def _most_likely(p: Floats, mass: float) -> NDArray[np.intp]:
    """Tokens by falling p, lowest ids first among equals: all of them, or enough to hold `mass` with a reserve beyond
    rounding. A sort of a large vocabulary takes longer than the rest of its transforms together.
    """
    if len(p) > UNSORTED:
        largest = p.max()
        for share in SHARES:
            likely = np.flatnonzero(p >= largest * share)
            if p[likely].sum() >= mass + RESERVE:
                return np.asarray(likely[(-p[likely]).argsort(kind="stable")])
    return np.asarray((-p).argsort(kind="stable"))


def one_hot(token: int, vocabulary: int) -> Floats:
    """[vocabulary] all mass on `token`."""
    row = np.zeros(vocabulary)
    row[token] = 1.0
    return row


def inverse_cdf(weights: Floats, u: float) -> int:
    """The token that u in [0, 1) picks: the smallest id whose cumulative share exceeds u.

    `weights` [V] need not sum to one. Tokens without weight are never picked.
    """
    total = weights.cumsum()
    token = int(total.searchsorted(u * total[-1], side="right"))
    if token < len(weights) and weights[token] > 0:
        return token
    return min(token, int(np.flatnonzero(weights)[-1]))


def gumbel_argmax(p: Floats, noise: Floats) -> int:
    """The Gumbel-max sample of `p` [V] under given noise [V]: distributed as p."""
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(p) + noise))


MaskOf = Callable[[Sequence[int]], Mask]
"""The generated tokens before a position, drafted ones included -> the tokens that the grammar allows there."""


class TargetRows:
    """Row 0 is the root's, row i + 1 node i's.

    Args:
        logits: [1 + N, V] as the model gave them.
        tree: the N drafted nodes.
        history: prompt and committed tokens, the root last.
        n_prompt: how many of `history` are the prompt.
        params: the request's sampling parameters.
        eos_ids: the model's end tokens.
        masks: the request's grammar; None without one.
    """

    def __init__(
        self,
        logits: NDArray[np.floating[Any]],
        tree: Tree,
        history: Sequence[int],
        n_prompt: int,
        params: SamplingParams,
        eos_ids: tuple[int, ...],
        masks: MaskOf | None = None,
    ) -> None:
        self.logits = logits
        self.tree = tree
        self._history = history
        self._n_prompt = n_prompt
        self._params = params
        self._eos_ids = eos_ids
        self._masks = masks
        self._done: dict[int, TransformedRow] = {}

    @property
    def position(self) -> int:
        """Absolute position of the token that row 0 decides."""
        return len(self._history)

    @property
    def greedy(self) -> bool:
        """Whether each row has all its mass on one token."""
        return self._params.greedy

    def __getitem__(self, row: int) -> TransformedRow:
        """The distribution after the path to the row's node."""
        if row not in self._done:
            history = [*self._history, *path_tokens(self.tree, row - 1)]
            self._done[row] = transform(
                self.logits[row], history, self._n_prompt, self._params, self._eos_ids, self.allowed(row)
            )
        return self._done[row]

    def allowed(self, row: int) -> Mask | None:
        """The grammar's mask on the row, given the path to its node; None without a grammar."""
        if self._masks is None:
            return None
        return self._masks([*self._history[self._n_prompt :], *path_tokens(self.tree, row - 1)])

    def best(self, row: int) -> int:
        """The row's most likely token, the lowest id on exact ties."""
        if self._params.plain_scores:
            token = int(self.logits[row].argmax())
            if np.isfinite(self.logits[row][token]):
                return token
        return int(np.argmax(self[row].scores))

    def chance(self, row: int, token: int) -> float:
        """The token's p; at temperature 0 all mass is on the best one."""
        return float(token == self.best(row)) if self.greedy else float(self[row].p[token])
