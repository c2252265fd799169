"""The numbers that the test of tokens needs: the anchor's rows on the candidate's tokens.

A token outside the truncated law is impossible, unless the engine's own arithmetic may have kept it: then it is near
the edge and left out. Where the engine does not name its end tokens, every law is that of a token that ends nothing.

Samples of one prompt: each is drawn anew, so it soon leaves the earlier ones.

Given an earlier sample, the next one begins with its first l tokens with the product of their probabilities. The chance
of a beginning as long as the one seen is therefore a p-value, whatever the law is; several earlier samples multiply
it by their number at most. Given the past, each sample's p-value is valid, so Fisher's sum over all of them is too.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.anchor.reference_laws import end_hidden
from audit.evidence.anchor.rows import row_at
from audit.evidence.decisions import NO_NODE, Decisions, decisions, own_cell
from audit.evidence.law.battery import ComponentTest
from audit.evidence.law.cells import exact_of, previous_at, top_of
from audit.evidence.law.table import LawTable, joined_tables, rows_of
from audit.evidence.records import RequestRecord
from audit.evidence.verdicts import Finding
from audit.stats.anytime.alternatives import NO_TOKEN
from audit.stats.anytime.token_mixture import TokenRows, log_ratios
from audit.stats.laws import chi2_sf
from engine.core.sequences import agreeing
from engine.core.types import Floats
from engine.record.trace import Trace

TEST: Final = "samples of a prompt share what they begin with"


class SharedBeginnings:
    """The samples of each prompt, in the order in which they are added."""

    def __init__(self) -> None:
        # of each sample its tokens, and [n + 1] the logarithms of its beginnings' probabilities
        self._earlier: dict[str, list[tuple[Sequence[int], Floats]]] = defaultdict(list)
        self._chances: list[float] = []
        self._whole = 0

    def add(self, case: str, tokens: Sequence[int], p: Floats) -> None:
        """A sample with its tokens' probabilities; a token whose probability is 0 here counts as certain."""
        earlier = self._earlier[case]
        if earlier:
            shared = [agreeing(other, tokens) for other, _ in earlier]
            least = min(float(logs[length]) for (_, logs), length in zip(earlier, shared, strict=True))
            self._chances.append(min(0.0, math.log(len(earlier)) + least))
            self._whole += max(shared) == len(tokens)
        logs = np.log(np.where(p > 0.0, np.minimum(p, 1.0), 1.0))
        earlier.append((tokens, np.concatenate([[0.0], np.cumsum(logs)])))

    def tested(self) -> list[ComponentTest]:
        """The test, where a prompt has several samples."""
        count = len(self._chances)
        if not count:
            return []
        statistic = -2.0 * sum(self._chances)
        p = float(chi2_sf(statistic, 2 * count))
        return [
            ComponentTest(TEST, "all", count, statistic, p, self._whole / count, "of samples repeat an earlier one")
        ]


EDGE: Final = 0.1
"""Relative error of a probability that may move a token over the threshold of top-k or min-p."""
EDGE_MASS: Final = 0.01
"""The same for the mass before a token, which top-p compares."""
LOOKUP: Final = 2
"""Tokens that a lookup compares with the text before them."""
EVENTS: Final = ("most likely token", "two most likely tokens", "previous token again", "token copied from the text")


@dataclass(frozen=True, slots=True)
class Events:
    """[n, len(EVENTS)] whether each event happened, and its probability; NaN where the event is not defined."""

    happened: Floats
    expected: Floats


@dataclass(frozen=True, slots=True)
class TokenEvidence:
    """All requests: tokens inside the law, tokens near the edge of a truncation, and impossible ones."""

    table: LawTable
    ratios: Floats
    """[n, K] of `audit.stats.anytime.token_mixture`."""
    events: Events
    edge: int
    impossible: tuple[Finding, ...]
    apart: tuple[ComponentTest, ...] = ()
    """Whether the samples of a prompt are drawn apart."""

    @property
    def tokens(self) -> int:
        """Judged tokens."""
        return len(self.ratios)


def gather(requests: Sequence[RequestRecord], most: int, generator: np.random.Generator) -> TokenEvidence:
    """Read the anchor's requests in order, up to `most` tokens. `generator` randomises the transforms."""
    hidden = any(map(end_hidden, requests))
    parts: list[TokenEvidence] = []
    left, beginnings = most, SharedBeginnings()
    for request in requests:
        if left <= 0:
            break
        parts.append(_request(request, hidden, left, generator, beginnings))
        left -= parts[-1].tokens
    return TokenEvidence(
        table=joined_tables([part.table for part in parts]),
        ratios=np.concatenate([part.ratios for part in parts]),
        events=Events(*(np.concatenate(item) for item in zip(*(_both(part.events) for part in parts), strict=True))),
        edge=sum(part.edge for part in parts),
        impossible=tuple(finding for part in parts for finding in part.impossible),
        apart=tuple(beginnings.tested()),
    )


def _both(events: Events) -> tuple[Floats, Floats]:
    return events.happened, events.expected


def _request(
    request: RequestRecord, hidden: bool, most: int, generator: np.random.Generator, beginnings: SharedBeginnings
) -> TokenEvidence:
    trace = request.trace
    made = decisions(request)
    made = _without_ends(made, trace.header.eos_ids) if hidden else made
    exact = exact_of(made)
    beginnings.add(request.case_id, request.tokens, exact.p)
    inside = (exact.p > 0) & (np.arange(len(made.token)) < most)
    outside = np.flatnonzero(exact.p <= 0)
    impossible = [int(i) for i in outside if not _near_edge(trace, int(i))]
    table = rows_of(made).randomised(generator).part(inside)
    rows = _rows(made, trace)
    return TokenEvidence(
        table=table,
        ratios=log_ratios(_chosen(rows, inside)),
        events=_events(made, rows, inside),
        edge=len(outside) - len(impossible),
        impossible=tuple(_impossible(request, made, i) for i in impossible),
    )


def _impossible(request: RequestRecord, made: Decisions, index: int) -> Finding:
    token = int(request.trace.token[index])
    return Finding(request.request_id, int(made.step[index]), f"token {token} was emitted, its p is 0")


def _without_ends(made: Decisions, ends: Sequence[int]) -> Decisions:
    """The laws given that the token ends nothing."""
    ids = np.broadcast_to(np.arange(made.p.shape[1]), made.p.shape) if made.lumped is None else made.lumped.ids
    end = np.isin(ids, np.asarray(ends, dtype=np.int64))
    mass = np.where(end, made.p, 0.0).sum(axis=1)
    rest = np.maximum(1.0 - mass, 1e-12)
    p = np.where(end, 0.0, made.p) / rest[:, None]
    if made.lumped is None:
        return dataclasses.replace(made, p=p)
    below = np.where(end & (ids < made.lumped.token[:, None]), made.p, 0.0).sum(axis=1)
    lumped = dataclasses.replace(made.lumped, p=made.lumped.p / rest, p_below=(made.lumped.p_below - below) / rest)
    return dataclasses.replace(made, p=p, lumped=lumped)


def _near_edge(trace: Trace, index: int) -> bool:
    """True if rounding may have kept a token that the truncation of the reference drops."""
    row, sampling, token = row_at(trace, index), trace.header.sampling, int(trace.token[index])
    place = np.flatnonzero(row.ids == token)
    own = float(row.plain[place[0]]) if len(place) else float(row.plain.min())
    if own <= 0.0:
        return False
    falling = np.sort(row.plain)[::-1]
    least = sampling.min_p * falling[0]
    if 0 < sampling.top_k <= len(falling):
        least = max(least, falling[sampling.top_k - 1])
    before = falling[(falling > own) & (falling >= least)].sum() / falling[falling >= least].sum()
    return bool(own >= least * (1.0 - EDGE) and (sampling.top_p >= 1.0 or before < sampling.top_p + EDGE_MASS))


def _rows(made: Decisions, trace: Trace) -> TokenRows:
    exact, at = exact_of(made), np.arange(len(made.token))
    top = top_of(made)
    history = [*trace.header.prompt, *exact.token.tolist()]
    start = len(trace.header.prompt)
    sampling = trace.header.sampling
    whole = sampling.plain_scores and sampling.temperature == 1.0
    whole = whole and sampling.top_k == 0 and sampling.top_p == 1.0 and sampling.min_p == 0.0
    return TokenRows(
        cells=made.p,
        cell=made.token,
        p_token=exact.p,
        top=(top == made.token) & (_ids(made)[at, top] == exact.token),
        top_mass=made.p[at, top],
        previous=previous_at(made),
        token=exact.token,
        repeated=np.concatenate([[NO_TOKEN], exact.token[:-1]]),
        copied=np.array(list(copies(history, start)), dtype=np.int64),
        plain=np.full(len(at), np.nan) if whole else np.exp(trace.logprob),
        vocabulary=trace.header.vocabulary,
    )


def _ids(made: Decisions) -> NDArray[np.int64]:
    """[E, C] the token of each cell."""
    return exact_of(made).ids


def _chosen(rows: TokenRows, mask: NDArray[np.bool_]) -> TokenRows:
    values: dict[str, Any] = {field.name: getattr(rows, field.name) for field in dataclasses.fields(TokenRows)}
    chosen: dict[str, Any] = {name: x if isinstance(x, int) else x[mask] for name, x in values.items()}
    return TokenRows(**chosen)


def copies(history: Sequence[int], start: int) -> Iterator[int]:
    """For each token from `start` on: the one that followed the last occurrence of the tokens before it."""
    last: dict[tuple[int, ...], int] = {}
    for index, token in enumerate(history):
        key = tuple(history[max(0, index - LOOKUP) : index])
        if index >= start:
            yield last.get(key, NO_TOKEN) if index >= LOOKUP else NO_TOKEN
        if index >= LOOKUP:
            last[key] = token


def _events(made: Decisions, rows: TokenRows, inside: NDArray[np.bool_]) -> Events:
    """The events of each token inside the law."""
    cells = made.p if made.lumped is None else made.p[:, :-1]
    pair = np.argsort(-cells, axis=1, kind="stable")[:, :2]
    two = np.take_along_axis(cells, pair, axis=1).sum(axis=1)
    happened = [rows.top, (pair == rows.cell[:, None]).any(axis=1)]
    expected = [rows.top_mass, two]
    for point in (rows.repeated, rows.copied):
        mass = _mass(made, point)
        happened.append(np.where(np.isnan(mass), np.nan, point == rows.token))
        expected.append(mass)
    return Events(
        np.stack([np.asarray(item, dtype=np.float64) for item in happened], axis=1)[inside],
        np.stack(expected, axis=1)[inside],
    )


def _mass(made: Decisions, point: NDArray[np.int64]) -> Floats:
    """[E] p of one token per row; NaN where there is none, or where the tail holds it."""
    cell = own_cell(_ids(made), point)
    mass = made.p[np.arange(len(point)), np.maximum(cell, 0)]
    return np.asarray(np.where((cell == NO_NODE) | (point == NO_TOKEN), np.nan, mass))
