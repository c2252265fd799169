"""Whole rows that level `topk` keeps of a sample of tokens, against everything that the record says about them.

The choice is repeated from the record. A kept row must have the recorded digest, and give the recorded cells, masses
and scores; so must the rows of q. Given its size, the sample is uniform among the tokens, so it bounds the share of
tokens with wrong numbers among those whose rows were not kept.

Rows are first searched in whole columns, for every one with a number that its record does not say; the search may
also find rows within the tolerances. Those that it finds are then compared one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.decisions import cells_beside
from audit.evidence.structure import Violation
from audit.evidence.tally import ROUNDED
from engine.core.types import Floats
from engine.record.columns import entries_before, examined_nodes
from engine.record.mask_bits import unpacked
from engine.record.rows.kept_rows import choices
from engine.record.rows.lumping import PAD
from engine.record.rows.row_digests import digests
from engine.record.trace import Trace
from engine.sampling.transforms import TransformedRow, plain_laws, transform

SUMMED: Final = 1e-9
"""Tolerance of sums over whole rows."""
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeptCheck:
    """One request's kept rows: how many there are, of how many tokens, and the differences."""

    rows: int
    tokens: int
    faults: tuple[Violation, ...]


def check_kept(trace: Trace) -> KeptCheck:
    """Compare the kept rows of a well-formed trace; one that promises none has none."""
    if not trace.header.kept_share:
        return KeptCheck(0, 0, ())
    return KeptCheck(len(trace.kept_at), len(trace.token), tuple(_faults(trace)))


def _faults(trace: Trace) -> Iterator[Violation]:
    expected = choices(trace)
    if trace.kept_at.tolist() != expected:
        missing = sorted(set(expected) - set(trace.kept_at.tolist()))
        what = f"token {missing[0]} is missing" if missing else "others are kept"
        yield Violation(0, f"the kept rows are not those that the record itself chooses: {what}")
        return
    wrong = trace.logits_digest[trace.kept_at] != digests(trace.kept_logits)
    if wrong.any():
        at = int(np.argmax(wrong))
        yield Violation(_step(trace, int(trace.kept_at[at])), "a kept row does not have the recorded digest")
    for index in strange_rows(trace):
        at = int(trace.kept_at[index])
        yield from (Violation(_step(trace, at), f"token {at}: {message}") for message in _row_faults(trace, index, at))
    ends = np.cumsum(trace.kept_q_count, dtype=np.int64)
    for index in strange_laws(trace):
        x, end, count = int(trace.kept_examined[index]), int(ends[index]), int(trace.kept_q_count[index])
        ids, q = trace.kept_q_id[end - count : end], trace.kept_q[end - count : end]
        yield from (Violation(0, f"examined token {x}: {message}") for message in _draft_faults(trace, x, ids, q))


def _step(trace: Trace, at: int) -> int:
    return int(np.searchsorted(np.cumsum(trace.n_emitted, dtype=np.int64), at, side="right"))


def _transformed(trace: Trace, index: int, at: int) -> TransformedRow:
    header = trace.header
    history = [*header.prompt, *trace.token[:at].tolist()]
    mask = unpacked(trace.kept_mask_bits[index], header.vocabulary) if len(trace.kept_mask_bits) else None
    return transform(trace.kept_logits[index], history, len(header.prompt), header.sampling, header.eos_ids, mask)


def _row_faults(trace: Trace, index: int, at: int) -> Iterator[str]:
    row, token = _transformed(trace, index, at), int(trace.token[at])
    ids = trace.cell_id[at][trace.cell_id[at] != PAD].astype(np.int64)
    tops = trace.top_id[at].astype(np.int64)
    if max(*ids.tolist(), *tops.tolist()) >= len(row.p):
        yield "its cells or its largest scores name a token outside the vocabulary"
        return
    outside = np.delete(row.p, ids)
    if not np.allclose(trace.cell_p[at, : len(ids)], row.p[ids], rtol=ROUNDED, atol=ROUNDED):
        yield "its cells are not those of its row"
    sums = {"row_p": float(row.p[token]), "p_below": float(row.p[:token].sum())}
    for name, value in sums.items():
        if not abs(float(getattr(trace, name)[at]) - value) <= SUMMED:
            yield f"{name} recorded {float(getattr(trace, name)[at]):.10g}, its row gives {value:.10g}"
    if not abs(float(trace.tail[at, 0]) - float(outside.sum())) <= SUMMED:
        yield f"the mass outside its cells recorded {trace.tail[at, 0]:.10g}, its row gives {outside.sum():.10g}"
    if not np.array_equal(row.scores[tops], trace.top_score[at]) or outside_scores(row.scores, tops):
        yield "its largest scores are not those of its row"


def outside_scores(scores: Floats, tops: np.ndarray) -> bool:
    """True if a score outside `tops` is larger than the smallest of them."""
    rest = np.delete(scores, tops)
    return bool(len(rest) and rest.max() > scores[tops].min())


def _draft_faults(trace: Trace, x: int, ids: np.ndarray, q: Floats) -> Iterator[str]:
    token = int(trace.node_token[_node(trace, x)])
    sums = {"q_below": q[ids < token].sum(), "q_own": q[ids == token].sum(), "q_sum": q.sum()}
    for name, value in sums.items():
        if not abs(float(getattr(trace, name)[x]) - float(value)) <= SUMMED:
            yield f"{name} recorded {float(getattr(trace, name)[x]):.10g}, its row of q gives {float(value):.10g}"


def _node(trace: Trace, x: int) -> int:
    """Index of an examined node among all drafted ones."""
    step = int(np.searchsorted(np.cumsum(trace.n_examined, dtype=np.int64), x, side="right"))
    return int(trace.n_drafted[:step].sum(dtype=np.int64)) + int(trace.examined_node[x])


def wrong_share(kept: int, tokens: int, confidence: float) -> float:
    """The largest share of wrong rows that a clean sample of `kept` of `tokens` leaves possible (hypergeometric).

    A sample without a wrong row has probability C(tokens - w, kept) / C(tokens, kept) if w are wrong; the bound is the
    largest w for which this is above 1 - confidence. It is close to 4.6 / kept at 99 %.
    """
    chance, wrong = 1.0, 0
    while wrong < tokens - kept:
        chance *= (tokens - wrong - kept) / (tokens - wrong)
        if chance <= 1.0 - confidence:
            return wrong / tokens
        wrong += 1
    return wrong / tokens if tokens else 1.0


def strange_rows(trace: Trace) -> list[int]:
    """The kept rows of p that may differ from the record, by their place among the kept ones."""
    logits, header = trace.kept_logits, trace.header
    everything = list(range(len(logits)))
    plain = header.sampling.plain_scores and header.sampling.structured is None
    if not len(logits) or not plain or not np.isfinite(logits.max(axis=1)).all():
        return everything
    p, at = plain_laws(logits, header.sampling), trace.kept_at.astype(np.int64)
    # NaN compares as wrong
    with np.errstate(invalid="ignore"):
        wrong = _wrong_cells(trace, at, p) | _wrong_sums(trace, at, p) | _wrong_tops(trace, at, logits)
    return np.flatnonzero(wrong).tolist()


def _wrong_cells(trace: Trace, at: Indices, p: Floats) -> Flags:
    cells = cells_beside(trace.cell_id[at].astype(np.int64), p)
    used, held = cells.used, cells.held
    # unused cells come last
    odd = (used[:, 1:] & ~used[:, :-1]).any(axis=1) | (used & ~cells.inside).any(axis=1) | cells.twice
    far = ~(np.abs(trace.cell_p[at] - held) <= (ROUNDED + ROUNDED * np.abs(held)) / 2)
    outside = p.sum(axis=1) - held.sum(axis=1)
    return np.asarray(odd | (used & far).any(axis=1) | ~(np.abs(trace.tail[at, 0] - outside) <= SUMMED / 2))


def _wrong_sums(trace: Trace, at: Indices, p: Floats) -> Flags:
    token = trace.token[at].astype(np.int64)
    below = np.where(np.arange(p.shape[1]) < token[:, None], p, 0.0).sum(axis=1)
    own = p[np.arange(len(p)), token]
    return np.asarray(
        ~(np.abs(trace.row_p[at] - own) <= SUMMED / 2) | ~(np.abs(trace.p_below[at] - below) <= SUMMED / 2)
    )


def _wrong_tops(trace: Trace, at: Indices, logits: NDArray[np.floating]) -> Flags:
    tops, rows = trace.top_id[at].astype(np.int64), np.arange(len(at))[:, None]
    inside = tops < logits.shape[1]
    known = np.where(inside, tops, 0)
    scores = logits.astype(np.float64)
    held = scores[rows, known]
    scores[rows, known] = -np.inf
    larger = scores.max(axis=1) > held.min(axis=1)
    return np.asarray((held != trace.top_score[at]).any(axis=1) | larger | ~inside.all(axis=1))


def strange_laws(trace: Trace) -> list[int]:
    """The kept rows of q whose sums may differ from the record, by their place among the kept ones."""
    kept = trace.kept_examined.astype(np.int64)
    node = examined_nodes(trace)[kept]
    token, ids = np.repeat(trace.node_token[node], trace.kept_q_count), trace.kept_q_id
    sums = {
        "q_below": _by_row(np.where(ids < token, trace.kept_q, 0.0), trace.kept_q_count),
        "q_own": _by_row(np.where(ids == token, trace.kept_q, 0.0), trace.kept_q_count),
        "q_sum": _by_row(trace.kept_q, trace.kept_q_count),
    }
    with np.errstate(invalid="ignore"):
        near = [np.abs(getattr(trace, name)[kept] - value) <= SUMMED / 2 for name, value in sums.items()]
    return np.flatnonzero(~np.logical_and.reduce(near)).tolist()


def _by_row(values: Floats, counts: NDArray[np.integer]) -> Floats:
    """[H] sums of consecutive values, so many for each row."""
    sums, filled = np.zeros(len(counts)), counts > 0
    begins = entries_before(counts)[filled]
    sums[filled] = np.add.reduceat(values, begins) if len(begins) else 0.0
    return sums
