"""Rows to columns: what a record level keeps of the rows that decided the tokens of some steps.

One function reduces the rows of every engine, so that a level means the same for all of them. It works on numpy arrays
and imports neither torch nor a compressor: vLLM's worker runs it, in an environment that may lack both.

Under the Gumbel rule level `topk` keeps the two largest entries of log p plus noise. Rows are scanned once: the largest
is the least of E / p, where E = -log(u) are the exponential numbers behind the noise. Only the two that lead are
perturbed as the engine does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, get_type_hints

import numpy as np
from numpy.typing import NDArray

from engine.core.types import Floats, Protocol, QKind, RecordLevel, StepRecord
from engine.core.versions import DraftVersion
from engine.record.columns import TOP
from engine.record.mask_bits import packed
from engine.record.rows.lumping import PAD, Cells, DraftMasses, DraftRows, cells_of, draft_masses, drawn_rows, empty
from engine.record.rows.row_digests import digests
from engine.record.rows.row_laws import WIDE, RowLaw, RowTerms, exponentials, largest, law_of
from engine.sampling.rng import Purpose, Randomness, gumbel_at

NAN: Final = float("nan")
Rows = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Perturbed:
    """Columns of the trace; empty but under the Gumbel rule, those of drafts unless these used the target's noise."""

    best_id: NDArray[np.uint32]
    best_score: Floats
    draft_best_id: NDArray[np.uint32]
    draft_best_score: Floats


def perturbed(terms: RowTerms, records: list[StepRecord], laws: Sequence[RowLaw]) -> Perturbed:
    """The leaders of every emitted token, with its law, and of every drawn examined one."""
    wanted = terms.protocol is Protocol.GUMBEL and not terms.sampling.greedy
    positions = [record.position + i for record in records for i in range(len(record.verdict.emitted))]
    rows = ((law.p, at) for law, at in zip(laws, positions, strict=True)) if wanted else ()
    drafts = list(drawn_rows(records)) if wanted and terms.coupled_draft else []
    own = _leaders(terms, rows, len(positions) if wanted else 0)
    drawn = (None if draft is None else (draft.q, draft.position) for draft in drafts)
    return Perturbed(*own, *_leaders(terms, drawn, len(drafts)))


def _leaders(
    terms: RowTerms, rows: Iterable[tuple[Floats, int] | None], count: int
) -> tuple[NDArray[np.uint32], Floats]:
    """[n, 2] ids and perturbed scores by laws with the positions of their tokens; `PAD` and NaN where there is none."""
    ids, scores = np.full((count, 2), PAD, np.uint32), np.full((count, 2), np.nan)
    seed, stream = terms.sampling.seed, terms.stream
    randomness = Randomness(seed, stream)
    for at, row in enumerate(rows):
        if row is None:
            continue
        law, position = row
        numbers = randomness.uniforms(position, Purpose.TARGET, len(law))
        support = np.flatnonzero(law)
        # numbers above 0: the engine clips the others to the smallest one
        waiting = -np.log(np.maximum(numbers[support], np.finfo(np.float64).tiny)) / law[support]
        few = min(3, len(support))
        near = support[np.argpartition(waiting, few - 1)[:few]]
        noise = gumbel_at(seed, stream, np.full(len(near), position), near)
        sums = np.log(law[near]) + noise
        order = np.lexsort((near, -sums))[:2]
        ids[at, : len(order)] = near[order]
        scores[at, : len(order)] = sums[order]
    return ids, scores


@dataclass(frozen=True, slots=True)
class Masks:
    """The columns of a grammar's masks, named as in the trace; all empty without a grammar."""

    mask_digest: NDArray[np.uint64]
    mask_count: NDArray[np.int32]
    mask_bits: NDArray[np.uint8]
    spare_mask_bits: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RecordedBlock:
    """A block of steps reduced to what a level holds: E emitted tokens, X examined nodes.

    `records` have lost their rows; `logits` [E, V], `spare_logits` [R, V] and `q_rows` [X, V] are there at `full` only.
    """

    records: tuple[StepRecord, ...]
    logprob: Floats
    margin: Floats
    logits_digest: NDArray[np.uint64]
    top_id: NDArray[np.uint32]
    top_score: Floats
    top_lse: Floats
    logits: Rows
    spare_logits: Rows
    q_rows: Floats
    cells: Cells
    draft_masses: DraftMasses
    perturbed: Perturbed
    masks: Masks

    @property
    def versions(self) -> frozenset[DraftVersion]:
        """The versions that drafted."""
        return frozenset(record.proposal.version for record in self.records if record.proposal.version is not None)


def reduce(terms: RowTerms, records: list[StepRecord]) -> RecordedBlock:
    """Reduce the rows to the level's columns and release them, unless the level holds the rows themselves."""
    level = terms.level
    full, scalars, lumped = (level is RecordLevel.FULL, level is not RecordLevel.TOKENS, level is RecordLevel.TOPK)
    logits = stacked([record.logits for record in records if scalars], terms.vocabulary)
    scores = _scores(records, logits) if scalars else logits
    token = np.array([item.token for record in records for item in record.verdict.emitted if scalars], dtype=np.int64)
    top_id, top_score = _tops(scores if lumped else scores[:0], terms)
    best = top_id[:, 0].tolist() if lumped else []
    laws = [law_of(row, terms.sampling, top) for row, top in zip(scores, best, strict=False)]
    drafts = [DraftRows(record) for record in records] if lumped else []
    return RecordedBlock(
        records=tuple(_without_rows(record) for record in records),
        logprob=logits[np.arange(len(token)), token] - _normalisers(terms, logits, laws),
        margin=_margins(scores, top_score),
        logits_digest=digests(logits),
        top_id=top_id.astype(np.uint32),
        top_score=top_score,
        top_lse=np.array([law.lse for law in laws], dtype=np.float64),
        logits=logits if full else logits[:0].copy(),
        spare_logits=stacked(
            [record.spare for record in records if full and record.spare is not None], terms.vocabulary
        ),
        q_rows=_q_rows(records if full else [], terms.vocabulary),
        cells=cells_of(drafts, laws, top_id, terms.coupled_draft) if lumped else empty(0, 0),
        draft_masses=draft_masses(drafts),
        perturbed=perturbed(terms, records if lumped else [], laws),
        masks=_masks(records, terms),
    )


NESTED: Final[Mapping[str, Any]] = {
    name: kind for name, kind in get_type_hints(RecordedBlock).items() if is_dataclass(kind)
}
"""Fields of a block that hold several columns, with their types."""
OF_EXAMINED: Final = ("q_rows", *(field.name for field in fields(DraftMasses)), "draft_best_id", "draft_best_score")
"""Columns with an entry per examined token; the others have one per emitted token."""


def columns_of(block: RecordedBlock) -> dict[str, NDArray[Any]]:
    """The columns of a block, named as in the trace."""
    mapping: dict[str, NDArray[Any]] = {}
    for field in fields(block):
        value = getattr(block, field.name)
        if field.name in NESTED:
            mapping |= {column.name: getattr(value, column.name) for column in fields(value)}
        elif field.name != "records":
            mapping[field.name] = value
    return mapping


def block_of(records: Sequence[StepRecord], columns: Mapping[str, NDArray[Any]]) -> RecordedBlock:
    """The inverse of `columns_of`, with the steps that the columns belong to."""
    named = {
        name: kind(**{field.name: columns[field.name] for field in fields(kind)}) for name, kind in NESTED.items()
    } | {field.name: columns[field.name] for field in fields(RecordedBlock) if field.name in columns}
    return RecordedBlock(records=tuple(records), **named)


def _masks(records: list[StepRecord], terms: RowTerms) -> Masks:
    """Digests and counts at every level, bits at `full`; empty unless every step has masks."""
    full = terms.level is RecordLevel.FULL
    masks = [record.allowed for record in records if record.allowed is not None]
    if not masks or len(masks) < len(records):
        return no_masks()
    rows = np.concatenate(masks)
    bits = packed(rows)
    spare = [packed(record.spare_allowed) for record in records if record.spare_allowed is not None]
    return Masks(
        mask_digest=digests(bits),
        mask_count=rows.sum(axis=1).astype(np.int32),
        mask_bits=bits if full else bits[:0].copy(),
        spare_mask_bits=np.concatenate(spare) if full and spare else bits[:0].copy(),
    )


def no_masks() -> Masks:
    """The columns of records without a grammar."""
    bits = np.empty((0, 0), np.uint8)
    return Masks(np.empty(0, np.uint64), np.empty(0, np.int32), bits, bits.copy())


def _without_rows(record: StepRecord) -> StepRecord:
    proposal = replace(record.proposal, q=None)
    return replace(
        record,
        proposal=proposal,
        logits=record.logits[:0].copy(),
        scores=None,
        spare=None,
        allowed=None,
        spare_allowed=None,
    )


def stacked(parts: list[Rows], vocabulary: int) -> Rows:
    """The rows of several steps, or none; those of one step are not copied."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty((0, vocabulary), np.float32)


def _scores(records: list[StepRecord], logits: Rows) -> Rows:
    """[E, V]: the logits themselves, not a copy, where no step has other scores."""
    if all(record.scores is None for record in records):
        return logits
    return np.concatenate([record.logits if record.scores is None else record.scores for record in records])


def _margins(scores: Rows, tops: Floats) -> Floats:
    """[E] the largest entry's lead by two passes, a tenth of a partition's cost; `scores` is as before afterwards."""
    if tops.shape[1] > 1:
        return np.asarray(tops[:, 0] - tops[:, 1])
    at = (np.arange(len(scores)), scores.argmax(axis=-1))
    largest = scores[at]
    scores[at] = -np.inf
    second = scores.max(axis=-1)
    scores[at] = largest
    return np.asarray(largest.astype(np.float64) - second.astype(np.float64))


def log_sum_exp_under(rows: Rows, largest: Floats) -> Floats:
    """[E] log of the summed exponentials of each row [E, V] whose `largest` entry [E] is known, in float64."""
    weights = np.subtract(rows, largest[:, None], dtype=np.float64)
    if weights.shape[-1] < WIDE:
        np.exp(weights, out=weights)
    else:
        exponentials(weights)
    return np.asarray(largest + np.log(weights.sum(axis=-1)))


def _tops(scores: Rows, terms: RowTerms) -> tuple[NDArray[np.int64], Floats]:
    """[E, K] ids and scores of the largest of each row, descending."""
    # below and above `topk` the columns are empty
    count = min(TOP, terms.vocabulary) if terms.level is RecordLevel.TOPK else 0
    ids = np.array([largest(row, count) for row in scores], dtype=np.int64).reshape(len(scores), count)
    return ids, np.take_along_axis(scores, ids, axis=-1).astype(np.float64)


def _normalisers(terms: RowTerms, logits: Rows, laws: Sequence[RowLaw]) -> Floats:
    """[E] log of the summed exponentials of the logits; that of the law where this is the same."""
    if laws and terms.sampling.plain_scores and terms.sampling.temperature in (0.0, 1.0):
        return np.array([law.lse for law in laws])
    return log_sum_exp_under(logits, logits.max(axis=-1, initial=-np.inf).astype(np.float64))


def _q_rows(records: list[StepRecord], vocabulary: int) -> Floats:
    """[X, V]; a one-hot row is rebuilt from its token, an unknown q is a row of NaN."""
    rows = np.full((sum(len(record.verdict.examined) for record in records), vocabulary), NAN)
    at = 0
    for record in records:
        nodes = [item.node for item in record.verdict.examined]
        block, proposal = rows[at : at + len(nodes)], record.proposal
        if proposal.q_kind is QKind.FULL and proposal.q is not None:
            block[:] = proposal.q[nodes]
        elif proposal.q_kind is QKind.ONE_HOT:
            block[:] = 0.0
            block[np.arange(len(nodes)), [proposal.tree.tokens[node] for node in nodes]] = 1.0
        at += len(nodes)
    return rows
