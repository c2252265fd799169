"""Counts of the versions of drafts that learn, from the steps on record."""

from __future__ import annotations

import json
from collections.abc import Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.store.base.values import DraftCounts
from audit.store.tables.runs import ArmRow, RequestRow, RequestStepsRow
from audit.store.writing.writer import find_run


def draft_versions(session: Session, ulid: str) -> tuple[DraftCounts, ...]:
    """The versions of drafts that learn, arms in the suite's order; empty if none does."""
    rows = session.execute(
        select(ArmRow.id, ArmRow.name, RequestStepsRow.steps, RequestStepsRow.draft_versions)
        .join(RequestRow, RequestRow.id == RequestStepsRow.request_id)
        .join(ArmRow, ArmRow.id == RequestRow.arm_id)
        .where(RequestRow.run_id == find_run(session, ulid).id, RequestStepsRow.draft_versions.is_not(None))
    ).all()
    sums: dict[tuple[int, str, int, str], list[int]] = {}
    for arm, name, steps, versions in rows:
        for drafted, accepted, version, digest in _learnt(steps, versions or "{}"):
            counts = sums.setdefault((arm, name, version, digest), [0, 0, 0])
            counts[:] = [counts[0] + 1, counts[1] + drafted, counts[2] + accepted]
    return tuple(DraftCounts(*key[1:], *sums[key]) for key in sorted(sums))


def _learnt(steps: str, versions: str) -> Iterator[tuple[int, int, int, str]]:
    """Drafted and accepted tokens, number and digest of the version of each step that has one."""
    digests = json.loads(versions)
    for step in json.loads(steps):
        digest = digests.get(str(step[6]))
        if digest is not None:
            yield step[1], step[2], step[6], digest
