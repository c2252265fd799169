"""The two largest entries of log p plus noise: what level `topk` keeps of decisions by the Gumbel rule.

Rows are scanned once: the largest entry of log p + noise is the least of E / p, where E = -log(u) are the exponential
numbers behind the noise. Only the two that lead are perturbed as the engine does it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Floats, Protocol, StepRecord
from engine.record.rows.lumping import PAD, drawn_rows
from engine.record.rows.row_laws import RowLaw, RowTerms
from engine.sampling.rng import Purpose, Randomness, gumbel_at


@dataclass(frozen=True, slots=True)
class Perturbed:
    """Columns of the trace; empty but under the Gumbel rule, those of drafts unless these used the target's noise."""

    best_id: NDArray[np.uint32]
    best_score: Floats
    draft_best_id: NDArray[np.uint32]
    draft_best_score: Floats


@dataclass(frozen=True, slots=True)
class _PerturbedRow:
    """A law and the position of its token."""

    law: Floats
    position: int


@dataclass(frozen=True, slots=True)
class _Leaders:
    """[n, 2] ids and perturbed scores; `PAD` and NaN where there is none."""

    ids: NDArray[np.uint32]
    scores: Floats


def perturbed(terms: RowTerms, records: list[StepRecord], laws: Sequence[RowLaw]) -> Perturbed:
    """The leaders of every emitted token, with its law, and of every drawn examined one."""
    wanted = terms.protocol is Protocol.GUMBEL and not terms.sampling.greedy
    positions = [record.position + i for record in records for i in range(len(record.verdict.emitted))]
    rows = (_PerturbedRow(law.p, at) for law, at in zip(laws, positions, strict=True)) if wanted else ()
    drafts = list(drawn_rows(records)) if wanted and terms.coupled_draft else []
    own = _leaders(terms, rows, len(positions) if wanted else 0)
    drawn = (None if draft is None else _PerturbedRow(draft.q, draft.position) for draft in drafts)
    theirs = _leaders(terms, drawn, len(drafts))
    return Perturbed(own.ids, own.scores, theirs.ids, theirs.scores)


def _leaders(terms: RowTerms, rows: Iterable[_PerturbedRow | None], count: int) -> _Leaders:
    result = _Leaders(np.full((count, 2), PAD, np.uint32), np.full((count, 2), np.nan))
    seed, stream = terms.sampling.seed, terms.stream
    randomness = Randomness(seed, stream)
    for at, row in enumerate(rows):
        if row is None:
            continue
        numbers = randomness.uniforms(row.position, Purpose.TARGET, len(row.law))
        support = np.flatnonzero(row.law)
        # numbers above 0: the engine clips the others to the smallest one
        waiting = -np.log(np.maximum(numbers[support], np.finfo(np.float64).tiny)) / row.law[support]
        few = min(3, len(support))
        near = support[np.argpartition(waiting, few - 1)[:few]]
        noise = gumbel_at(seed, stream, np.full(len(near), row.position), near)
        sums = np.log(row.law[near]) + noise
        order = np.lexsort((near, -sums))[:2]
        result.ids[at, : len(order)] = near[order]
        result.scores[at, : len(order)] = sums[order]
    return result
