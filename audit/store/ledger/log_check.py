"""Compare every covered row of a store with its entry in the log.

Cannot see: a log that was recomputed as a whole, or cut together with its rows. A checkpoint kept outside the store
shows both (`audit.store.ledger.notes`).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.store.base.merkle import leaf_hash
from audit.store.base.values import IntegrityViolation
from audit.store.ledger import entries
from audit.store.ledger.coverage import COVERED, RUN_STATE, Covered
from audit.store.ledger.entries import STATE
from audit.store.ledger.log_scan import Scan
from audit.store.tables.content import CONTENT, FINDING, ErasureRow

EDITED = "the row was edited after it was logged"
DELETED = "the row was deleted after it was logged"
UNLOGGED = "no entry of the log covers it: it was inserted past the log, or the end of the log was cut"


@dataclass(frozen=True, slots=True)
class Damaged:
    """Damage with the entry that shows it; the log's size if none does."""

    seq: int
    violation: IntegrityViolation


def damage(session: Session, scanned: Scan) -> Iterator[IntegrityViolation]:
    """Every difference between the rows and their entries, and every entry that does not fit, first entry first."""
    result = [
        Damaged(problem.seq, IntegrityViolation(f"log entry {problem.seq}", problem.message))
        for problem in scanned.problems
    ]
    for kind, covered in COVERED.items():
        result.extend(_differences(session, kind, covered, scanned))
    result.extend(_changed_states(session, scanned))
    # rows without an entry come last
    yield from (item.violation for item in sorted(result, key=lambda item: item.seq))


def _differences(session: Session, kind: str, covered: Covered, scanned: Scan) -> Iterator[Damaged]:
    logged = dict(scanned.logged.get(kind, {}))
    erased, leaves = _erased(session, kind), scanned.leaves
    for rows in entries.batches(session, covered, kind):
        for ref, data in zip(rows.refs, rows.data, strict=True):
            seq = logged.pop(ref, None)
            if seq is None:
                yield Damaged(scanned.size, IntegrityViolation(f"{kind} {ref}", UNLOGGED))
            elif leaves[seq] != leaf_hash(data):
                yield _damaged(kind, ref, seq, EDITED)
    for ref, seq in logged.items():
        if ref not in erased:
            yield _damaged(kind, ref, seq, DELETED)


def _erased(session: Session, kind: str) -> frozenset[str]:
    """Keys of the rows that an erasure names, which may be missing."""
    named = {"token_trace": (ErasureRow.request_id, CONTENT), "finding": (ErasureRow.check_result_id, FINDING)}
    if kind not in named:
        return frozenset()
    key, what = named[kind]
    return frozenset(str(item) for item in session.scalars(select(key).where(ErasureRow.what == what)))


def _changed_states(session: Session, scanned: Scan) -> Iterator[Damaged]:
    logged = scanned.logged.get(STATE, {})
    for row in entries.rows(session, RUN_STATE, STATE):
        seq = logged.get(row.ref)
        if seq is not None and scanned.leaves[seq] != leaf_hash(row.data):
            changes = _changes(scanned.texts.get(seq), row.data)
            yield _damaged("run", row.ref, seq, f"its state was edited: {changes}")
        elif seq is None and row.ref in scanned.logged.get("run", {}):
            yield Damaged(scanned.size, IntegrityViolation(f"run {row.ref}", "no entry of the log holds its state"))


def _damaged(kind: str, ref: str, seq: int, message: str) -> Damaged:
    return Damaged(seq, IntegrityViolation(f"log entry {seq}: {kind} {ref}", message))


def _changes(logged: str | None, stored: bytes) -> str:
    """The columns that differ, with both values."""
    try:
        before = json.loads(logged or "[]")
    except ValueError:
        return "its entry is damaged"
    after: list[Any] = json.loads(stored)
    names = ("", *RUN_STATE.columns)
    width = len(names)
    pairs = zip(names, _padded(before, width), _padded(after, width), strict=True)
    return ", ".join(f"{name} was {old!r}, is {new!r}" for name, old, new in pairs if old != new)


def _padded(values: list[Any], width: int) -> list[Any]:
    return [*values, *[None] * (width - len(values))][:width]
