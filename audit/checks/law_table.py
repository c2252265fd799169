"""The numbers that the law tests need, one row per emitted token.

Everything that a row depends on besides the emitted token was fixed before that
token was drawn. Rows are kept, distributions are not, so that memory does not
grow with the vocabulary. Knows nothing about p-values.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.checks.base import Finding
from audit.checks.decisions import NO_NODE, Decisions, decisions
from audit.records import RequestRecord
from audit.stats import alternatives
from audit.stats.pit import pit
from audit.stats.scores import Moments, leak_scores, log_p_scores, moments, picked
from engine.types import Floats, Protocol, Role


@dataclass(frozen=True, slots=True)
class Table:
    """E emitted tokens of all requests; NaN where a number does not exist at a position."""

    depth: NDArray[np.int64]
    bonus: NDArray[np.bool_]
    """[E] everything drafted was accepted before."""
    known: NDArray[np.bool_]
    """[E] q of the position is known."""
    rank_pit: Floats
    id_pit: Floats
    ratio_pit: Floats
    logp: Floats
    """[E, 4] observed score, mean, variance, third moment."""
    leak: Floats
    """[E, 5] the same for q / (p + q), and its mean under q."""
    argmax: Floats
    """[E, 5] the same for a draft that always offers the argmax of p."""
    distance: Floats
    """[E, 2] total variation between p and q, and between p and its argmax."""
    draft_pit: Floats
    """[E] the drafted token under q, chain rule only."""
    accept: Floats
    """[E, 2] accepted or not, and min(1, p / q) of the drafted token, chain rule only."""
    residual_rank_pit: Floats
    residual_id_pit: Floats
    """[E] a recovered token under the residual, chain rule only."""


@dataclass(frozen=True, slots=True)
class Law:
    """The table, the evidence for each named alternative and what is impossible under the law."""

    table: Table
    process: alternatives.Evidence
    impossible: tuple[Finding, ...]


def seed_of(requests: Sequence[RequestRecord]) -> int:
    """A seed from the tokens themselves: the same evidence is always judged by the same numbers."""
    content = hashlib.sha256()
    for request in requests:
        content.update(repr((request.request_id, request.tokens)).encode())
    return int.from_bytes(content.digest()[:8], "big")


def tabulate(requests: Sequence[RequestRecord], generator: np.random.Generator) -> Law:
    """The numbers of all requests, in their order. `generator` randomises the transforms."""
    parts: list[Table] = []
    impossible: list[Finding] = []
    process = alternatives.start()
    for request in requests:
        made = decisions(request)
        impossible.extend(_impossible(made))
        parts.append(_part(made, generator))
        process = alternatives.extend(process, _chunk(made))
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in dataclasses.fields(Table)
    }
    return Law(Table(**columns), process, tuple(impossible))


def _impossible(made: Decisions) -> Iterator[Finding]:
    """Tokens without any probability: no number of samples excuses one."""
    rows = np.arange(len(made.token))
    for i in np.flatnonzero(made.p[rows, made.token] <= 0):
        yield Finding(made.request, int(made.step[i]), f"token {int(made.token[i])} was emitted, its p is 0")
    drafted = _tested(made)
    for i in np.flatnonzero(drafted & (made.q[rows, made.drafted] <= 0)):
        yield Finding(made.request, int(made.step[i]), f"token {int(made.drafted[i])} was drafted, its q is 0")
    left = np.maximum(made.p - made.q, 0.0)
    recovered = drafted & (made.role == Role.RECOVERED) & (left.sum(axis=1) > 0)
    for i in np.flatnonzero(recovered & (left[rows, made.token] <= 0)):
        message = f"recovered token {int(made.token[i])} has no residual mass: p is not above q there"
        yield Finding(made.request, int(made.step[i]), message)


def _tested(made: Decisions) -> NDArray[np.bool_]:
    """[E] positions where the chain rule tested one drafted token of known q."""
    chain = made.protocol is Protocol.CHAIN
    return np.asarray(chain & (made.drafted != NO_NODE) & made.known)


def _chunk(made: Decisions) -> alternatives.Chunk:
    """One request for the named alternatives, without its impossible tokens: those are findings already.

    Only what was fixed before a token was drawn: the token refused one position earlier, and never the one
    refused here. A draft's own tokens may have decided its length, so no position is called the last.
    """
    kept = made.p[np.arange(len(made.token)), made.token] > 0
    previous = np.concatenate([np.full_like(made.p[:1], np.nan), made.p[:-1]])
    refused = np.where(made.role == Role.RECOVERED, made.drafted, alternatives.NO_TOKEN)
    return alternatives.Chunk(
        p=made.p[kept],
        q=made.q[kept],
        previous=previous[kept],
        token=made.token[kept],
        depth=made.depth[kept],
        bonus=_bonus(made)[kept],
        last=np.zeros(int(kept.sum()), dtype=np.bool_),
        repeated=_shifted(made.token)[kept],
        refused=_shifted(refused)[kept],
    )


def _shifted(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each position's predecessor."""
    return np.concatenate([np.full_like(tokens[:1], alternatives.NO_TOKEN), tokens[:-1]])


def _bonus(made: Decisions) -> NDArray[np.bool_]:
    return np.asarray((made.candidates == 0) & (made.depth > 0))


def _part(made: Decisions, generator: np.random.Generator) -> Table:
    p, q, token = made.p, np.where(made.known[:, None], made.q, 0.0), made.token
    known = made.known
    v = generator.random(len(token))
    top = np.zeros_like(p)
    top[np.arange(len(token)), p.argmax(axis=1)] = 1.0
    ids = np.broadcast_to(-np.arange(p.shape[1], dtype=np.float64), p.shape)
    ratio = np.divide(q, p, out=np.zeros_like(p), where=p > 0)
    chain = _chain_columns(made, generator)
    return Table(
        depth=made.depth,
        bonus=_bonus(made),
        known=known,
        rank_pit=pit(p, p, token, v),
        id_pit=pit(p, ids, token, v),
        ratio_pit=_only(known, pit(p, ratio, token, v)),
        logp=_scored(log_p_scores(p), p, token),
        leak=_only(known, _leak(p, q, token)),
        argmax=_leak(p, top, token),
        distance=np.stack([_only(known, _distance(p, q)), _distance(p, top)], axis=1),
        draft_pit=chain.draft,
        accept=chain.accept,
        residual_rank_pit=chain.residual_rank,
        residual_id_pit=chain.residual_id,
    )


def _only(where: NDArray[np.bool_], values: Floats) -> Floats:
    """`values` with NaN in the rows that are not `where`."""
    kept = values.copy()
    kept[~where] = np.nan
    return kept


def _distance(p: Floats, q: Floats) -> Floats:
    return np.asarray(0.5 * np.abs(p - q).sum(axis=1))


def _scored(scores: Floats, p: Floats, token: NDArray[np.int64]) -> Floats:
    expected = moments(scores, p)
    return np.stack([picked(scores, token), expected.mean, expected.variance, expected.third], axis=1)


def _leak(p: Floats, q: Floats, token: NDArray[np.int64]) -> Floats:
    scores = leak_scores(p, q)
    under_q = np.sum(q * scores, axis=1)
    return np.concatenate([_scored(scores, p, token), under_q[:, None]], axis=1)


def moments_of(columns: Floats) -> Moments:
    """Moments from a table's score columns [n, 4 or 5]."""
    return Moments(columns[:, 1], columns[:, 2], columns[:, 3])


@dataclass(frozen=True, slots=True)
class _Chain:
    draft: Floats
    accept: Floats
    residual_rank: Floats
    residual_id: Floats


def _chain_columns(made: Decisions, generator: np.random.Generator) -> _Chain:
    """Component numbers of the chain rule; all NaN under other rules."""
    count = len(made.token)
    tested = _tested(made)
    draft, accept = np.full(count, np.nan), np.full((count, 2), np.nan)
    rank, by_id = np.full(count, np.nan), np.full(count, np.nan)
    drawn = tested & ~made.one_hot
    draft[drawn] = pit(made.q[drawn], made.q[drawn], made.drafted[drawn], generator.random(int(drawn.sum())))
    at = np.flatnonzero(tested)
    p_x, q_x = made.p[at, made.drafted[at]], made.q[at, made.drafted[at]]
    accept[at, 0] = made.role[at] == Role.ACCEPTED
    accept[at, 1] = np.minimum(1.0, np.divide(p_x, q_x, out=np.ones_like(p_x), where=q_x > 0))
    recovered = np.flatnonzero(tested & (made.role == Role.RECOVERED))
    left = np.maximum(made.p[recovered] - made.q[recovered], 0.0)
    mass = left.sum(axis=1, keepdims=True)
    residual = np.where(mass > 0, left / np.where(mass > 0, mass, 1.0), made.p[recovered])
    v, tokens = generator.random(len(recovered)), made.token[recovered]
    ids = np.broadcast_to(-np.arange(made.p.shape[1], dtype=np.float64), residual.shape)
    rank[recovered] = pit(residual, residual, tokens, v)
    by_id[recovered] = pit(residual, ids, tokens, v)
    return _Chain(draft, accept, rank, by_id)
