"""The sums of a run as the store keeps them from the run's end, so that its first page need not read every step.

They are derived: no hash covers them, no verdict reads them, and a bundle leaves them out. `audit db check` makes them
again and compares. A run without them, which has not ended, is summed when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from audit.stats.acceptance_estimators import DraftSums
from audit.store.canonical import to_json
from audit.store.contents import IntegrityViolation
from audit.store.models import RunRow
from audit.store.step_drafts import ArmDraftSums
from audit.store.sum_models import RunSumsRow
from audit.store.sums import ArmSample, DomainCounts, Latencies, RunSums, SpanCounts, StepCounts, run_sums

FORMAT: Final = 2
"""Version of `run_sums.sums`."""
PARTS: Final[Mapping[str, type]] = {
    "domains": DomainCounts,
    "steps": StepCounts,
    "spans": SpanCounts,
    "latencies": Latencies,
    "samples": ArmSample,
    "drafts": ArmDraftSums,
}
"""What the rows of each part are."""


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
    """A difference between the kept sums of a run and its rows."""
    row = session.get(RunSumsRow, run.id)
    if row is not None and (row.format != FORMAT or row.sums != _text(run_sums(session, run.ulid))):
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


KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "int | None": (int, type(None)),
}


def _made(kind: type, values: Any) -> Any:
    """A row of a part.

    Raises:
        ValueError, TypeError: it is none.
    """
    if kind is ArmSample:
        arm, requests, cases = values
        return ArmSample(str(arm), int(requests), tuple((str(case), int(sample)) for case, sample in cases))
    if kind is ArmDraftSums:
        arm, sums, contradictions = values
        return ArmDraftSums(str(arm), None if sums is None else _made(DraftSums, sums), tuple(map(str, contradictions)))
    if not all(isinstance(value, KINDS[str(place.type)]) for place, value in zip(fields(kind), values, strict=True)):
        raise ValueError("a value of another kind")
    return kind(*values)
