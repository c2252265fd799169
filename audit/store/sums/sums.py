"""Sums over a run's own requests and their steps, made by the database.

A page about a million tokens reads a few hundred rows. Directed requests are left out.

Steps of endpoints are left out, because nobody counted their drafts (`audit.store.sums.accounts`).

The sums of a run as the store keeps them from the run's end, so that its first page need not read every step.

They are derived: no hash covers them, no verdict reads them, and a bundle leaves them out. `audit db check` makes them
again and compares. A run without them, which has not ended, is summed when it is read.
"""

import hashlib
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, get_args, get_type_hints

from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from audit.evidence.records import DIRECTED_PREFIX
from audit.stats.acceptance.estimators import DraftSums
from audit.store.base.canonical import to_json
from audit.store.base.values import IntegrityViolation, RequestKey, RunStatus
from audit.store.sums.drafts import ArmDraftSums, run_draft_sums
from audit.store.tables.runs import RunRow
from audit.store.tables.verdicts import RunSumsRow

MOST_SPANS: Final = 24
"""Most spans of an arm."""
SAMPLED: Final = 64
"""Requests of an arm's sample that are kept with the sums."""

OWN: Final = f"SUBSTR(case_id, 1, {len(DIRECTED_PREFIX)}) <> '{DIRECTED_PREFIX}'"
"""The suite's own requests, as `audit.store.sums.accounts` has them."""
DOMAINS: Final = f"""
SELECT arm, domain, COUNT(*), SUM(n_steps), SUM(n_drafted), SUM(n_accepted), SUM(n_output)
FROM v_request WHERE run = :run AND {OWN} GROUP BY arm, domain ORDER BY arm, domain
"""
STEPS: Final = f"""
SELECT arm, n_drafted, n_accepted, n_emitted, COUNT(*), SUM(draft_us), SUM(verify_us)
FROM v_step WHERE run = :run AND n_drafted IS NOT NULL AND {OWN}
GROUP BY arm, n_drafted, n_accepted, n_emitted ORDER BY arm, n_drafted, n_accepted, n_emitted
"""
# the rows of requests grow in the order in which requests finished
SPANS: Final = f"""
SELECT arm, span, MIN(place), MAX(place), SUM(n_steps), SUM(n_drafted), SUM(n_accepted), SUM(n_output)
FROM (
  SELECT arm, n_steps, n_drafted, n_accepted, n_output,
         ROW_NUMBER() OVER (PARTITION BY arm ORDER BY request_id) AS place,
         ((ROW_NUMBER() OVER (PARTITION BY arm ORDER BY request_id) - 1) * :spans)
           / COUNT(*) OVER (PARTITION BY arm) AS span
  FROM v_request WHERE run = :run AND n_drafted IS NOT NULL AND {OWN}
) AS placed
GROUP BY arm, span ORDER BY arm, span
"""
LATENCIES: Final = f"""
SELECT arm, total, spent, output,
       MIN(CASE WHEN place >= 0.5 * total THEN latency_us END),
       MIN(CASE WHEN place >= 0.9 * total THEN latency_us END),
       MIN(CASE WHEN place >= 0.99 * total THEN latency_us END), MAX(latency_us)
FROM (
  SELECT arm, latency_us, ROW_NUMBER() OVER (PARTITION BY arm ORDER BY latency_us, request_id) AS place,
         COUNT(*) OVER (PARTITION BY arm) AS total, SUM(latency_us) OVER (PARTITION BY arm) AS spent,
         SUM(n_output) OVER (PARTITION BY arm) AS output
  FROM v_request WHERE run = :run AND latency_us > 0 AND {OWN}
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


FORMAT: Final = 2
"""Version of `run_sums.sums`."""
PARTS: Final[Mapping[str, type]] = {part: get_args(rows)[0] for part, rows in get_type_hints(RunSums).items()}
"""The types of the parts' rows."""


def keep(session: Session, run: RunRow) -> None:
    """Keep the sums of a run that has ended."""
    session.add(RunSumsRow(run_id=run.id, format=FORMAT, sums=_text(run_sums(session, run.ulid))))


def drop(session: Session, run: RunRow) -> None:
    """Forget the sums of a run that goes on."""
    session.execute(delete(RunSumsRow).where(RunSumsRow.run_id == run.id))


def stored(session: Session, run: RunRow) -> RunSums | None:
    """The kept sums of a run; None if there are none, or they have another form."""
    row = session.get(RunSumsRow, run.id)
    if row is None or row.format != FORMAT:
        return None
    try:
        known = json.loads(row.sums)
        return RunSums(**{part: tuple(_made(kind, values) for values in known[part]) for part, kind in PARTS.items()})
    except (ValueError, TypeError, LookupError):
        return None


def damage(session: Session, run: RunRow) -> Iterator[IntegrityViolation]:
    """A difference between the kept sums of a run and its rows; a finished run has sums."""
    row = session.get(RunSumsRow, run.id)
    if row is None:
        # one that goes on after an end has a root and no sums until it ends again
        if run.status == RunStatus.FINISHED:
            yield IntegrityViolation("run", "its kept sums were deleted")
    elif row.format != FORMAT or row.sums != _text(run_sums(session, run.ulid)):
        yield IntegrityViolation("run", "its kept sums are not those of its requests")


def astray(session: Session) -> Iterator[IntegrityViolation]:
    """Kept sums of runs that do not exist, which PostgreSQL does not find by itself."""
    for run in session.scalars(select(RunSumsRow.run_id).where(RunSumsRow.run_id.not_in(select(RunRow.id)))):
        yield IntegrityViolation(f"run_sums {run}", "refers to a row of run that does not exist")


def _text(sums: RunSums) -> str:
    rows = {
        part: [[_plain(getattr(one, place.name)) for place in fields(kind)] for one in getattr(sums, part)]
        for part, kind in PARTS.items()
    }
    return to_json(rows)


def _plain(value: Any) -> Any:
    return [getattr(value, place.name) for place in fields(value)] if isinstance(value, DraftSums) else value


def _made(kind: type, values: Any) -> Any:
    """A row of a part; raises ValueError, TypeError: it is none."""
    if kind is ArmSample:
        arm, requests, cases = values
        return ArmSample(str(arm), int(requests), tuple((str(case), int(sample)) for case, sample in cases))
    if kind is ArmDraftSums:
        arm, sums, contradictions = values
        return ArmDraftSums(str(arm), None if sums is None else _made(DraftSums, sums), tuple(map(str, contradictions)))
    kinds = (int | float if one is float else one for one in get_type_hints(kind).values())
    if not all(isinstance(value, one) for one, value in zip(kinds, values, strict=True)):
        raise ValueError("a value of another kind")
    return kind(*values)
