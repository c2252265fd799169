"""Kept drafted tokens as numbers with a known law, provided that keeping did not depend on the token.

If the prefix decides whether a place keeps its drafted token, a kept token follows q; if the token itself decides, it
follows q given that it was kept. Rows of q are read request by request and not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.draft_draws import DraftDraw, draft_draws, target_row
from audit.evidence.records import RequestRecord
from audit.stats.anytime.scores import moments
from audit.stats.pit import pit
from engine.core.types import Floats, Role
from engine.record.trace import StepView, Trace, steps_of

THRESHOLDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
ORDERS: Final = ("q", "p / q", "id")


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """[N] kept tokens of one arm from q rows with more than one possible token; T thresholds."""

    ranks: Floats
    """[N, 3] randomised ranks in the three orders, NaN if unknown."""
    below: NDArray[np.bool_]
    """[N, T] whether q of the token is below each threshold."""
    chance: Floats
    """[N, T] mass of q on such tokens."""
    confidence: Floats
    """[N, 4] confidence of the draft after the token, from other requests; its mean, variance and third moment."""
    ended: NDArray[np.bool_]
    """[N] whether the draft ended with the token, before `gamma` tokens."""


def kept_tokens(requests: Sequence[RequestRecord], gamma: int | None, generator: np.random.Generator) -> KeptTokens:
    """Collect all requests in order. `generator` randomises the ranks; without `gamma` no draft counts as ended."""
    sureness = [_sureness(requests[1 - fold :: 2]) for fold in (0, 1)]
    parts = [_kept(request.trace, gamma, sureness[i % 2], generator) for i, request in enumerate(requests)]
    return KeptTokens(
        ranks=np.concatenate([part.ranks for part in parts]),
        below=np.concatenate([part.below for part in parts]),
        chance=np.concatenate([part.chance for part in parts]),
        confidence=np.concatenate([part.confidence for part in parts]),
        ended=np.concatenate([part.ended for part in parts]),
    )


def _sureness(requests: Sequence[RequestRecord]) -> Floats | None:
    """[V] mean of the largest q after each token, the overall mean for unseen tokens; None without data."""
    result = [(draw.previous, float(draw.q.max())) for request in requests for draw in draft_draws(request.trace)]
    if not result:
        return None
    tokens, largest = np.array([token for token, _ in result]), np.array([value for _, value in result])
    size = requests[0].trace.header.vocabulary
    counts = np.bincount(tokens, minlength=size)
    sums = np.bincount(tokens, weights=largest, minlength=size)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), largest.mean()))


def _kept(trace: Trace, gamma: int | None, sureness: Floats | None, generator: np.random.Generator) -> KeptTokens:
    draws = [draw for draw in draft_draws(trace) if 0.0 < float(draw.q.max()) < 1.0]
    count, size = len(draws), trace.header.vocabulary
    v = generator.random((count, len(ORDERS)))
    q = np.stack([draw.q for draw in draws]) if draws else np.empty((0, size))
    tokens = np.array([draw.token for draw in draws], dtype=np.int64)
    own = q[np.arange(count), tokens]
    drafted = np.array([int(trace.n_drafted[draw.step]) for draw in draws], dtype=np.int64)
    reached = np.array([draw.position - int(trace.position[draw.step]) + 1 for draw in draws], dtype=np.int64)
    return KeptTokens(
        ranks=np.array([_ranks(draw, trace, v[i]) for i, draw in enumerate(draws)]).reshape(-1, len(ORDERS)),
        below=own[:, None] < np.array(THRESHOLDS),
        chance=np.stack([np.where(q < item, q, 0.0).sum(axis=1) for item in THRESHOLDS], axis=1),
        confidence=_scored(q, tokens, sureness),
        ended=np.asarray((reached == drafted) & (drafted < (gamma or 0))),
    )


def _ranks(draw: DraftDraw, trace: Trace, v: Floats) -> Floats:
    q, token = draw.q[None], np.array([draw.token])
    p = target_row(draw, trace)
    ratio = None if p is None else np.divide(p[None], q, out=np.full_like(q, np.inf), where=q > 0)
    ids = -np.arange(q.shape[1], dtype=np.float64)[None]
    keys = (q, ratio, ids)
    return np.array([np.nan if key is None else pit(q, key, token, v[k : k + 1])[0] for k, key in enumerate(keys)])


def _scored(q: Floats, tokens: NDArray[np.int64], sureness: Floats | None) -> Floats:
    if sureness is None:
        return np.full((len(q), 4), np.nan)
    law = moments(np.broadcast_to(sureness, q.shape), q)
    return np.stack([sureness[tokens], law.mean, law.variance, law.third], axis=1)


def never_examined(trace: Trace) -> Iterator[int]:
    """Steps that decided a place with drafted tokens without examining one; the trace is well-formed."""
    for view in steps_of(trace):
        if _passed_over(trace, view):
            yield view.index


def _passed_over(trace: Trace, view: StepView) -> bool:
    at = view.emitted.stop - 1
    if int(trace.role[at]) == Role.ACCEPTED:
        return False
    offered = np.flatnonzero(trace.node_parent[view.nodes] == int(trace.row[at]) - 1)
    # the tree rule skips later siblings once the earlier ones have used up p, but examines the first
    return bool(len(offered)) and int(offered[0]) not in trace.examined_node[view.examined]
