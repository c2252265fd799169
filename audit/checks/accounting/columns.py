"""Vectorised search for suspect numbers, which `audit.checks.accounting.rules` then examines one by one.

The result contains every number that breaks a rule. Where the rule takes a logarithm or a sum, whose last bits depend
on the order of operations, it also contains numbers close to the limit.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.tally import TOLERANCE
from engine.core.types import Floats
from engine.record.trace import Trace

CLOSE: Final = TOLERANCE / 2
"""Far above rounding, and within the rules' tolerance."""
Flags = NDArray[np.bool_]


def strange_numbers(trace: Trace, *, ours: bool = True) -> Flags:
    """[E] true where p, log-probability or margin may be impossible; a p that is not `ours` may be unknown."""
    p, logprob, margin = trace.p, trace.logprob, trace.margin
    wrong = ~(_probable(p) | (np.isnan(p) & (not ours))) | np.isnan(logprob) | (logprob > TOLERANCE) | ~(margin >= 0)
    if trace.header.lossless:
        wrong |= (p == 0) | np.isneginf(logprob)
    if trace.header.sampling.plain_scores:
        wrong |= logprob > -np.log1p(np.exp(-np.maximum(margin, 0.0))) + CLOSE
    return np.asarray(wrong)


def strange_drafts(trace: Trace, *, ours: bool = True) -> Flags:
    """[X] true where p or q of an examined token is no probability; q may be unknown, and p if it is not `ours`."""
    p, q = trace.examined_p, trace.examined_q
    return np.asarray(~(_probable(p) | (np.isnan(p) & (not ours))) | ~(_probable(q) | np.isnan(q)))


def _probable(values: Floats) -> Flags:
    return np.asarray((values >= 0.0) & (values <= 1.0 + TOLERANCE))


def strange_tops(trace: Trace) -> Flags:
    """[E] true where the largest scores may contradict each other or the emitted token."""
    scores, token = trace.top_score, trace.token
    # NaN scores break the order, so such a row is suspect whatever its sums are
    with np.errstate(invalid="ignore"):
        scaled = scores / (trace.header.sampling.temperature or 1.0)
        logs = scaled - trace.top_lse[:, None]
        rising = ~np.all(scores[:, 1:] <= scores[:, :-1], axis=1)
        ids = np.sort(trace.top_id, axis=1)
        wrong = rising | np.any(ids[:, 1:] == ids[:, :-1], axis=1) | ~(trace.top_lse >= scaled[:, 0] - TOLERANCE)
        if trace.header.lossless:
            result = trace.top_id == token[:, None]
            rank = np.where(result.any(axis=1), result.argmax(axis=1), scores.shape[1])
            wrong |= _outside(trace, rank, np.asarray(logs))
    return np.asarray(wrong)


def _outside(trace: Trace, rank: NDArray[np.int64], logs: Floats) -> Flags:
    """[E] true where the token may lie outside the truncated set; `rank` is its index in the K `logs`, or K."""
    sampling, kept = trace.header.sampling, logs.shape[1]
    if sampling.greedy:
        return np.asarray(rank > 0)
    rows = np.arange(len(rank))
    own = logs[rows, np.minimum(rank, kept - 1)]
    wrong = (rank < kept) & (trace.p < np.exp(own) - CLOSE)
    if 0 < sampling.top_k <= kept:
        wrong |= own < logs[:, sampling.top_k - 1] - CLOSE
    if sampling.min_p:
        wrong |= own < logs[:, 0] + math.log(sampling.min_p) - CLOSE
    if sampling.top_p < 1:
        before = np.concatenate([np.zeros((len(rank), 1)), np.cumsum(np.exp(logs), axis=1)], axis=1)
        wrong |= before[rows, rank] > sampling.top_p + CLOSE
    return np.asarray(wrong)
