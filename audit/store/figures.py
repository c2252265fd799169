"""Sums over a run's requests and steps, made by the database: a page about a million tokens reads a few hundred rows.

Steps of endpoints are left out, because nobody counted their drafts (`audit.store.accounts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from audit.store.values import RequestKey
from audit.store.writer import find_run

DOMAINS: Final = """
SELECT arm, domain, requests, n_steps, n_drafted, n_accepted, n_output
FROM v_acceptance WHERE run = :run ORDER BY arm, domain
"""
STEPS: Final = """
SELECT arm, n_drafted, n_accepted, n_emitted, COUNT(*), SUM(draft_us), SUM(verify_us)
FROM v_step WHERE run = :run AND n_drafted IS NOT NULL
GROUP BY arm, n_drafted, n_accepted, n_emitted ORDER BY arm, n_drafted, n_accepted, n_emitted
"""
# the rows of requests grow in the order in which requests finished
SPANS: Final = """
SELECT arm, span, MIN(place), MAX(place), SUM(n_steps), SUM(n_drafted), SUM(n_accepted), SUM(n_output)
FROM (
  SELECT arm, n_steps, n_drafted, n_accepted, n_output,
         ROW_NUMBER() OVER (PARTITION BY arm ORDER BY request_id) AS place,
         ((ROW_NUMBER() OVER (PARTITION BY arm ORDER BY request_id) - 1) * :spans)
           / COUNT(*) OVER (PARTITION BY arm) AS span
  FROM v_request WHERE run = :run AND n_drafted IS NOT NULL
) AS placed
GROUP BY arm, span ORDER BY arm, span
"""
LATENCIES: Final = """
SELECT arm, total, spent, output,
       MIN(CASE WHEN place >= 0.5 * total THEN latency_us END),
       MIN(CASE WHEN place >= 0.9 * total THEN latency_us END),
       MIN(CASE WHEN place >= 0.99 * total THEN latency_us END), MAX(latency_us)
FROM (
  SELECT arm, latency_us, ROW_NUMBER() OVER (PARTITION BY arm ORDER BY latency_us, request_id) AS place,
         COUNT(*) OVER (PARTITION BY arm) AS total, SUM(latency_us) OVER (PARTITION BY arm) AS spent,
         SUM(n_output) OVER (PARTITION BY arm) AS output
  FROM v_request WHERE run = :run AND latency_us > 0
) AS placed
GROUP BY arm, total, spent, output ORDER BY arm
"""
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
PIECES: Final = """
SELECT token, piece FROM token_piece WHERE tokenizer_id =
  (SELECT MIN(run_artifact.artifact_id) FROM run_artifact JOIN run ON run.id = run_artifact.run_id
   WHERE run.ulid = :run AND run_artifact.role = 'tokenizer')
"""


@dataclass(frozen=True, slots=True)
class DomainCounts:
    """Counts of one arm in one domain; steps, drafted and accepted tokens are None for an endpoint."""

    arm: str
    domain: str
    requests: int
    steps: int | None
    drafted: int | None
    accepted: int | None
    output: int


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Number of an arm's steps that drafted, kept and emitted these numbers of tokens, with the sums of their times."""

    arm: str
    drafted: int
    accepted: int
    emitted: int
    steps: int
    draft_us: int
    verify_us: int


@dataclass(frozen=True, slots=True)
class SpanCounts:
    """Counts of an arm's requests from number `first` to `last`, from 1 in the order in which they finished."""

    arm: str
    first: int
    last: int
    steps: int
    drafted: int
    accepted: int
    output: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """Microseconds per request of one arm: percentiles by nearest rank, the longest and the sum; `output` tokens."""

    arm: str
    requests: int
    total_us: int
    output: int
    p50: int
    p90: int
    p99: int
    longest: int


@dataclass(frozen=True, slots=True)
class ArmPairs:
    """Requests that two arms have both, and those of them that cannot be compared because an answer is erased."""

    pairs: int
    erased: int


class Figures:
    """The sums of a store. `Store.figures` makes it; every method is one transaction."""

    def __init__(self, read: Callable[[Callable[[Session], Any]], Any]) -> None:
        self._read = read

    def domains(self, run: str) -> tuple[DomainCounts, ...]:
        """Counts by arm and domain."""
        return tuple(DomainCounts(*row) for row in self._rows(DOMAINS, run))

    def steps(self, run: str) -> tuple[StepCounts, ...]:
        """Steps by arm and by the tokens that they drafted, kept and emitted."""
        return tuple(StepCounts(row[0], *map(int, row[1:])) for row in self._rows(STEPS, run))

    def spans(self, run: str, most: int) -> tuple[SpanCounts, ...]:
        """Counts by arm over at most `most` spans of equally many requests, in the order in which they finished."""
        rows = self._rows(SPANS, run, spans=most)
        return tuple(SpanCounts(row[0], *map(int, row[2:])) for row in rows)

    def latencies(self, run: str) -> tuple[Latencies, ...]:
        """Latencies by arm, of the requests that have a time."""
        rows = self._rows(LATENCIES, run)
        return tuple(Latencies(row[0], *map(int, row[1:])) for row in rows)

    def pairs(self, run: str, arm: str, baseline: str) -> ArmPairs:
        """Number of requests that both arms have, and of those among them whose content is erased."""
        ((pairs, erased),) = self._rows(PAIRS, run, arm=arm, baseline=baseline)
        return ArmPairs(int(pairs), int(erased or 0))

    def parted(self, run: str, arm: str, baseline: str) -> tuple[RequestKey, ...]:
        """The requests of an arm whose tokens, end or text differ from the baseline's.

        Erased content compares as equal but for the number of tokens and the end.
        """
        rows = self._rows(PARTED, run, arm=arm, baseline=baseline)
        return tuple(RequestKey(arm, case, int(sample)) for case, sample in rows)

    def pieces(self, run: str) -> Mapping[int, str]:
        """The recorded texts of the tokens of a run's tokenizer; empty if there are none."""
        return {int(token): piece for token, piece in self._rows(PIECES, run)}

    def _rows(self, sql: str, run: str, **given: Any) -> Sequence[Any]:
        def work(session: Session) -> Sequence[Any]:
            find_run(session, run)
            return session.execute(text(sql), {"run": run, **given}).all()

        rows: Sequence[Any] = self._read(work)
        return rows
