"""The numbers that the law tests need, one row per emitted token.

Apart from the emitted token, a row depends only on data fixed before that token was drawn. The table keeps rows and no
distributions, so that memory does not grow with the vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.evidence.decisions import NO_NODE, Decisions, LumpedDecisions, decisions, own_cell
from audit.evidence.law.cells import exact_of, log_scores, previous_at, residual_laws, top_of
from audit.evidence.records import RequestRecord
from audit.evidence.verdicts import Finding
from audit.stats.anytime import alternatives
from audit.stats.anytime.scores import Moments, leak_scores, moments, picked
from audit.stats.pit import Intervals, intervals
from engine.core.types import Floats, Protocol, Role


@dataclass(frozen=True, slots=True)
class LawTable:
    """E emitted tokens of all requests; NaN if a position lacks the number."""

    depth: NDArray[np.int64]
    bonus: NDArray[np.bool_]
    """[E] all drafted tokens before this position were accepted."""
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
    tail: Floats
    """[E] mass of p in the tail cell; 0 for whole rows."""
    seen: Floats
    """[E] total variation between p and q on the cells."""
    draft_pit: Floats
    """[E] the drafted token under q, chain rule only."""
    accept: Floats
    """[E, 2] accepted or not, and min(1, p / q) of the drafted token, chain rule only."""
    residual_rank_pit: Floats
    residual_id_pit: Floats
    """[E] a recovered token under the residual, chain rule only."""

    def part(self, mask: NDArray[np.bool_]) -> LawTable:
        """The tokens of a mask [E]."""
        return LawTable(**{field.name: getattr(self, field.name)[mask] for field in dataclasses.fields(LawTable)})


def joined_tables(tables: Sequence[LawTable]) -> LawTable:
    """The tokens of several tables, one after another; at least one table."""
    names = [field.name for field in dataclasses.fields(LawTable)]
    return LawTable(**{name: np.concatenate([getattr(table, name) for table in tables]) for name in names})


@dataclass(frozen=True, slots=True)
class LawEvidence:
    """Rows of one request or of several, the evidence for each named alternative after them, and findings of impossible
    tokens.
    """

    table: LawTable
    process: alternatives.WealthState
    impossible: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class LawPart:
    """One request before random numbers randomise its transforms: they need the requests in order."""

    rows: LawRows
    ratios: alternatives.LogRatios
    impossible: tuple[Finding, ...]


def part_of(made: Decisions, *, argmax: bool = True) -> LawPart:
    """Read one request; without `argmax` its scores in that direction are left out, as NaN."""
    return LawPart(rows_of(made, argmax=argmax), alternatives.log_ratios_of(_chunk(made)), tuple(_impossible(made)))


class Tabulation:
    """Completes the parts of an arm's requests, which come in order. `generator` randomises the transforms."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator, self._process = generator, alternatives.start()

    def complete(self, part: LawPart) -> LawEvidence:
        """The next request's rows, and the evidence for each named alternative after it."""
        table = part.rows.randomised(self._generator)
        self._process = alternatives.grown(self._process, part.ratios)
        return LawEvidence(table, self._process, part.impossible)


def request_by_request(requests: Sequence[RequestRecord], generator: np.random.Generator) -> Iterator[LawEvidence]:
    """Tabulate the requests one after another. `generator` randomises the transforms."""
    tabulation = Tabulation(generator)
    for request in requests:
        yield tabulation.complete(part_of(decisions(request)))


def tabulate(requests: Sequence[RequestRecord], generator: np.random.Generator) -> LawEvidence:
    """Tabulate all requests in order. `generator` randomises the transforms."""
    tabulated = tuple(request_by_request(requests, generator))
    impossible = tuple(finding for one in tabulated for finding in one.impossible)
    return LawEvidence(joined_tables([one.table for one in tabulated]), tabulated[-1].process, impossible)


def _impossible(made: Decisions) -> Iterator[Finding]:
    """A finding for each token of probability 0."""
    exact = exact_of(made)
    for i in np.flatnonzero(exact.p <= 0):
        yield Finding(made.request, int(made.step[i]), f"token {int(exact.token[i])} was emitted, its p is 0")
    drafted = _tested(made)
    for i in np.flatnonzero(drafted & (exact.drafted_q <= 0)):
        yield Finding(made.request, int(made.step[i]), f"token {int(exact.refused[i])} was drafted, its q is 0")
    recovered = drafted & (made.role == Role.RECOVERED) & (exact.residual_sum > 0)
    for i in np.flatnonzero(recovered & (exact.p <= exact.q)):
        message = f"recovered token {int(exact.token[i])} has no residual mass: p is not above q there"
        yield Finding(made.request, int(made.step[i]), message)


def _tested(made: Decisions) -> NDArray[np.bool_]:
    """[E] positions where the chain rule tested one drafted token of known q."""
    chain = made.protocol is Protocol.CHAIN
    return np.asarray(chain & (made.drafted != NO_NODE) & made.known)


def _chunk(made: Decisions) -> alternatives.Chunk:
    """One request for the named alternatives, without its impossible tokens, which are findings already.

    The chunk holds only data fixed before each token was drawn: the token refused one position earlier, not the
    one refused at this position. No position is marked as last, because the drafted tokens may decide the length.
    """
    rows = np.arange(len(made.token))
    kept = made.p[rows, made.token] > 0
    own = exact_of(made)
    refused = np.where(made.role == Role.RECOVERED, own.refused, alternatives.NO_TOKEN)
    return alternatives.Chunk(
        p=made.p[kept],
        q=made.q[rows, made.token][kept],
        previous=previous_at(made)[kept],
        token=made.token[kept],
        depth=made.depth[kept],
        bonus=_bonus(made)[kept],
        last=np.zeros(int(kept.sum()), dtype=np.bool_),
        repeated=_here(made, _shifted(own.token))[kept],
        refused=_here(made, _shifted(refused))[kept],
    )


def _here(made: Decisions, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens as cells of this row; NO_NODE for a token without its own cell."""
    return tokens if made.lumped is None else own_cell(made.lumped.ids, tokens)


def _shifted(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """The entry of each position's predecessor."""
    return np.concatenate([np.full_like(tokens[:1], alternatives.NO_TOKEN), tokens[:-1]])


def _bonus(made: Decisions) -> NDArray[np.bool_]:
    return np.asarray((made.candidates == 0) & (made.depth > 0))


@dataclass(frozen=True, slots=True)
class LawRows:
    """One request's rows as in `LawTable`, with intervals instead of transforms."""

    fixed: Mapping[str, NDArray[Any]]
    """The columns without random numbers."""
    rank: Intervals
    by_id: Intervals
    ratio: Intervals
    chain: _Chain

    def randomised(self, generator: np.random.Generator) -> LawTable:
        """The rows, with random numbers for the emitted tokens, then the drafted, then the recovered ones."""
        count = len(self.rank.own)
        v, chain = generator.random(count), self.chain
        drafted = generator.random(len(chain.drawn))
        w = generator.random(len(chain.recovered))
        return LawTable(
            **self.fixed,
            rank_pit=self.rank.at(v),
            id_pit=self.by_id.at(v),
            ratio_pit=_only(self.fixed["known"], self.ratio.at(v)),
            draft_pit=_spread(count, chain.drawn, chain.draft.at(drafted)),
            residual_rank_pit=_spread(count, chain.recovered, chain.residual_rank.at(w)),
            residual_id_pit=_spread(count, chain.recovered, chain.residual_id.at(w) / chain.residual),
        )


def rows_of(made: Decisions, *, argmax: bool = True) -> LawRows:
    """One request's rows; `argmax` as in `part_of`."""
    p, q, token = made.p, np.where(made.known[:, None], made.q, 0.0), made.token
    known, exact = made.known, exact_of(made)
    ratio = np.divide(q, p, out=np.zeros_like(p), where=p > 0)
    return LawRows(
        fixed={
            "depth": made.depth,
            "bonus": _bonus(made),
            "known": known,
            "logp": _scored(log_scores(made), p, token),
            "leak": _only(known, _leak(p, q, token)),
            "argmax": _leak(p, _one_hot(made), token) if argmax else np.full((len(token), 5), np.nan),
            "distance": np.stack(
                [_only(known, exact.residual_sum), 1.0 - p[np.arange(len(token)), top_of(made)]], axis=1
            ),
            "seen": _only(known, 0.5 * np.abs(p - q).sum(axis=1)),
            "tail": np.zeros(len(token)) if made.lumped is None else p[:, -1],
            "accept": _acceptances(made, exact),
        },
        rank=intervals(p, p, token),
        by_id=Intervals(exact.p_below, exact.p),
        ratio=intervals(p, ratio, token),
        chain=_chain(made, exact),
    )


def _one_hot(made: Decisions) -> Floats:
    """[E, C] all mass on the argmax of p."""
    top = np.zeros_like(made.p)
    top[np.arange(len(top)), top_of(made)] = 1.0
    return top


def _spread(count: int, rows: NDArray[np.int64], values: Floats) -> Floats:
    """[count] `values` at `rows`, NaN elsewhere."""
    column = np.full(count, np.nan)
    column[rows] = values
    return column


def _only(where: NDArray[np.bool_], values: Floats) -> Floats:
    """`values` with NaN in the rows that are not `where`."""
    kept = values.copy()
    kept[~where] = np.nan
    return kept


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
    """The components of the chain rule; empty under other rules."""

    drawn: NDArray[np.int64]
    """The places whose drafted token was drawn."""
    draft: Intervals
    recovered: NDArray[np.int64]
    """The places whose drafted token was rejected."""
    residual_rank: Intervals
    residual_id: Intervals
    residual: Floats
    """The unit of `residual_id`."""


def _acceptances(made: Decisions, exact: LumpedDecisions) -> Floats:
    """[E, 2] accepted or not, and min(1, p / q), where the chain rule tested one drafted token."""
    accept = np.full((len(made.token), 2), np.nan)
    at = np.flatnonzero(_tested(made))
    p_x, q_x = exact.drafted_p[at], exact.drafted_q[at]
    accept[at, 0] = made.role[at] == Role.ACCEPTED
    accept[at, 1] = np.minimum(1.0, np.divide(p_x, q_x, out=np.ones_like(p_x), where=q_x > 0))
    return accept


def _chain(made: Decisions, exact: LumpedDecisions) -> _Chain:
    tested = _tested(made)
    drawn = np.flatnonzero(tested & ~made.one_hot)
    recovered = np.flatnonzero(tested & (made.role == Role.RECOVERED))
    residual = residual_laws(made, recovered)
    mass, own = exact.residual_sum[recovered], np.maximum(exact.p - exact.q, 0.0)[recovered]
    left = mass > 0
    return _Chain(
        drawn=drawn,
        draft=intervals(made.q[drawn], made.q[drawn], made.drafted[drawn]),
        recovered=recovered,
        residual_rank=intervals(residual, residual, made.token[recovered]),
        residual_id=Intervals(
            np.where(left, exact.residual_below[recovered], exact.p_below[recovered]),
            np.where(left, own, exact.p[recovered]),
        ),
        residual=np.where(left, mass, 1.0),
    )
