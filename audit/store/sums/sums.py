"""Sums over a run's requests and steps, made by the database: a page about a million tokens reads a few hundred rows.

Steps of endpoints are left out, because nobody counted their drafts (`audit.store.sums.accounts`).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from audit.store.base.values import RequestKey
from audit.store.sums.drafts import ArmDraftSums, run_draft_sums

MOST_SPANS: Final = 24
"""Most spans of an arm."""
SAMPLED: Final = 64
"""Requests of an arm's sample that are kept with the sums."""

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
REQUESTS: Final = """
SELECT arm.name AS arm, request.case_id, request.sample
FROM arm JOIN request ON request.arm_id = arm.id WHERE arm.run_id = (SELECT id FROM run WHERE ulid = :run)
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
class ArmSample:
    """An arm's number of requests, and those of them whose names have the smallest SHA-256, in its order.

    The names are ARM/CASE#SAMPLE, so nothing that a request contains can bring it into the sample.
    """

    arm: str
    requests: int
    cases: tuple[tuple[str, int], ...]

    @property
    def keys(self) -> Iterator[RequestKey]:
        """The sampled requests."""
        return (RequestKey(self.arm, case, sample) for case, sample in self.cases)

    def holds(self, most: int) -> bool:
        """True if it has the first `most` of the order."""
        return len(self.cases) >= min(most, self.requests)


@dataclass(frozen=True, slots=True)
class RunSums:
    """The sums of a run, arms by name."""

    domains: tuple[DomainCounts, ...]
    steps: tuple[StepCounts, ...]
    spans: tuple[SpanCounts, ...]
    latencies: tuple[Latencies, ...]
    samples: tuple[ArmSample, ...]
    drafts: tuple[ArmDraftSums, ...]


def run_sums(session: Session, run: str) -> RunSums:
    """The sums of a run by its ULID, from its rows."""
    return RunSums(
        domains(session, run),
        steps(session, run),
        spans(session, run, MOST_SPANS),
        latencies(session, run),
        samples(session, run, SAMPLED),
        run_draft_sums(session, run),
    )


def domains(session: Session, run: str) -> tuple[DomainCounts, ...]:
    """Counts by arm and domain."""
    rows = _rows(session, DOMAINS, run)
    return tuple(DomainCounts(*row[:2], *(None if value is None else int(value) for value in row[2:])) for row in rows)


def steps(session: Session, run: str) -> tuple[StepCounts, ...]:
    """Steps by arm and by the tokens that they drafted, kept and emitted."""
    return tuple(StepCounts(row[0], *map(int, row[1:])) for row in _rows(session, STEPS, run))


def spans(session: Session, run: str, most: int) -> tuple[SpanCounts, ...]:
    """Counts by arm over at most `most` spans of equally many requests, in the order in which they finished."""
    rows = _rows(session, SPANS, run, spans=most)
    return tuple(SpanCounts(row[0], *map(int, row[2:])) for row in rows)


def latencies(session: Session, run: str) -> tuple[Latencies, ...]:
    """Latencies by arm, of the requests that have a time."""
    return tuple(Latencies(row[0], *map(int, row[1:])) for row in _rows(session, LATENCIES, run))


def samples(session: Session, run: str, most: int) -> tuple[ArmSample, ...]:
    """At most `most` sampled requests of each arm that has any."""
    arms: dict[str, list[tuple[bytes, str, int]]] = {}
    for arm, case, sample in _rows(session, REQUESTS, run):
        name = RequestKey(arm, case, sample).name
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
        arms.setdefault(arm, []).append((digest, case, sample))
    return tuple(
        ArmSample(arm, len(keys), tuple((case, sample) for _, case, sample in heapq.nsmallest(most, keys)))
        for arm, keys in sorted(arms.items())
    )


def _rows(session: Session, sql: str, run: str, **given: Any) -> Sequence[Any]:
    return session.execute(text(sql), {"run": run, **given}).all()
