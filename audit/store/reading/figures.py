"""Figures of a whole run for a page, from the sums that are kept of it or from its rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from sqlalchemy import select, text, tuple_
from sqlalchemy.orm import Session

from audit.store.base.transactions import Transaction, reads
from audit.store.base.values import RequestKey
from audit.store.sums.drafts import ArmDraftSums, arm_drafts, run_draft_sums
from audit.store.sums.sums import ArmSample, RunSums, run_sums, samples, stored
from audit.store.tables.runs import ArmRow, RequestRow, find_run

PAIRS: Final = """
SELECT COUNT(*),
       SUM(CASE WHEN candidate.output_sha256 IS NULL OR baseline.output_sha256 IS NULL THEN 1 ELSE 0 END)
FROM v_request AS candidate JOIN v_request AS baseline
  ON baseline.run = candidate.run AND baseline.case_id = candidate.case_id AND baseline.sample = candidate.sample
WHERE candidate.run = :run AND candidate.arm = :arm AND baseline.arm = :baseline
"""
# a pair parts in its tokens, in its end, or in the text that an engine made of equal tokens
PARTED: Final = """
SELECT candidate.case_id, candidate.sample
FROM v_request AS candidate JOIN v_request AS baseline
  ON baseline.run = candidate.run AND baseline.case_id = candidate.case_id AND baseline.sample = candidate.sample
LEFT JOIN content AS ours ON ours.request_id = candidate.request_id
LEFT JOIN content AS theirs ON theirs.request_id = baseline.request_id
WHERE candidate.run = :run AND candidate.arm = :arm AND baseline.arm = :baseline
  AND (candidate.output_sha256 <> baseline.output_sha256 OR candidate.finish_reason <> baseline.finish_reason
       OR candidate.n_output <> baseline.n_output OR ours.text <> theirs.text)
ORDER BY candidate.case_id, candidate.sample
"""
LENGTHS: Final = """
SELECT arm, COUNT(*), MAX(n_prompt + n_output), SUM(CASE WHEN n_output <= :short THEN 1 ELSE 0 END),
       SUM(CASE WHEN n_output <= :short THEN n_drafted END), SUM(CASE WHEN n_output <= :short THEN n_accepted END)
FROM v_request WHERE run = :run GROUP BY arm ORDER BY arm
"""
PIECES: Final = """
SELECT token, piece FROM token_piece WHERE tokenizer_id =
  (SELECT MIN(run_artifact.artifact_id) FROM run_artifact JOIN run ON run.id = run_artifact.run_id
   WHERE run.ulid = :run AND run_artifact.role = 'tokenizer')
"""


@dataclass(frozen=True, slots=True)
class ArmPairs:
    """Requests that two arms have both, and those of them that cannot be compared because an answer is erased."""

    pairs: int
    erased: int


@dataclass(frozen=True, slots=True)
class ArmLengths:
    """Requests of an arm, tokens of its longest prompt with answer, and the counts of its short answers.

    `drafted` and `accepted` are None where nobody counted the drafts of one request.
    """

    arm: str
    requests: int
    longest: int
    short: int
    drafted: int | None
    accepted: int | None


def _sums(session: Session, run: str) -> RunSums:
    """Sums over requests and steps by arm: those kept when the run ended, else summed now."""
    return stored(session, find_run(session, run)) or run_sums(session, run)


def _draft_sums(session: Session, run: str) -> tuple[ArmDraftSums, ...]:
    """The sums of the drafts of each candidate whose engine reports its steps: those kept, else summed now."""
    kept = stored(session, find_run(session, run))
    return run_draft_sums(session, run) if kept is None else kept.drafts


def _samples(session: Session, run: str, most: int) -> tuple[ArmSample, ...]:
    """At least `most` sampled requests of each arm, or all of them."""
    kept = stored(session, find_run(session, run))
    if kept is not None and all(sample.holds(most) for sample in kept.samples):
        return kept.samples
    return samples(session, run, most)


def _pairs(session: Session, run: str, arm: str, baseline: str) -> ArmPairs:
    """Number of requests that both arms have, and of those among them whose content is erased."""
    ((pairs, erased),) = _rows(session, PAIRS, run, arm=arm, baseline=baseline)
    return ArmPairs(int(pairs), int(erased or 0))


def _parted(session: Session, run: str, arm: str, baseline: str) -> tuple[RequestKey, ...]:
    """The requests that differ from the baseline's in tokens, end or text; if erased, in number of tokens or end."""
    rows = _rows(session, PARTED, run, arm=arm, baseline=baseline)
    return tuple(RequestKey(arm, case, int(sample)) for case, sample in rows)


def _lengths(session: Session, run: str, short: int) -> tuple[ArmLengths, ...]:
    """The lengths of the requests of each arm; answers of at most `short` tokens are short."""
    return tuple(
        ArmLengths(arm, int(requests), int(longest), int(few), _count(drafted), _count(accepted))
        for arm, requests, longest, few, drafted, accepted in _rows(session, LENGTHS, run, short=short)
    )


def _pieces(session: Session, run: str) -> Mapping[int, str]:
    """The recorded texts of the tokens of a run's tokenizer; empty if there are none."""
    return {int(token): piece for token, piece in _rows(session, PIECES, run)}


def _rows(session: Session, sql: str, run: str, **given: Any) -> Sequence[Any]:
    find_run(session, run)
    return session.execute(text(sql), {"run": run, **given}).all()


def _count(cell: Any) -> int | None:
    return None if cell is None else int(cell)


def _present(session: Session, run: str, keys: Collection[RequestKey]) -> frozenset[RequestKey]:
    """Those of the keys that are requests of the run: a query per arm, which its unique index answers."""
    of_run = select(ArmRow.id, ArmRow.name).where(ArmRow.run_id == find_run(session, run).id)
    arms = {name: row for row, name in session.execute(of_run)}
    place, present = tuple_(RequestRow.case_id, RequestRow.sample), set()
    for arm, group in groupby(sorted(keys), key=lambda key: key.arm):
        wanted = [(key.case_id, key.sample) for key in group]
        query = select(RequestRow.case_id, RequestRow.sample).where(RequestRow.arm_id == arms.get(arm))
        present |= {RequestKey(arm, *row) for row in session.execute(query.where(place.in_(wanted)))}
    return frozenset(present)


@dataclass(frozen=True, slots=True)
class Figures:
    """The sums of a store. `Store.figures` makes it; every method is one transaction."""

    read: Transaction

    sums = reads(_sums)
    draft_sums = reads(_draft_sums)
    samples = reads(_samples)
    present = reads(_present)
    pairs = reads(_pairs)
    parted = reads(_parted)
    lengths = reads(_lengths)
    drafts = reads(arm_drafts)
    pieces = reads(_pieces)
