"""Drafts of an arm's requests as the engine's own steps give them, and their sums, which the store keeps.

Endpoints report no steps: `audit.store.sums.request_drafts` reads their accounts, which go when a trace is erased.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.evidence.records import ArmKind
from audit.stats.acceptance.estimators import DraftSums, DraftTotals, contradiction, draft_sums
from audit.store.base.values import RequestKey
from audit.store.sums.accounts import reports_steps
from audit.store.tables.runs import ArmRow, RequestRow, RequestStepsRow, RunRow
from engine.record.effective import Effective

MOST: Final = 3
"""Most contradictions of an arm that are named."""


@dataclass(frozen=True, slots=True)
class RequestDrafts:
    """Drafts of one request.

    emitted: tokens of the answer. steps: those with a draft; None if nobody counted them. plan: drafted and accepted
    tokens of each step with a draft, empty if only sums are known.
    """

    key: RequestKey
    domain: str
    emitted: int
    steps: int | None
    drafted: int
    accepted: int
    plan: tuple[tuple[int, int], ...] = ()

    @property
    def contradiction(self) -> str | None:
        """The request with what contradicts itself in its account; None if nothing does."""
        found = contradiction(self.steps, self.drafted, self.accepted, self.emitted)
        return None if found is None else f"{self.key.short}: {found}"


@dataclass(frozen=True, slots=True)
class ArmDraftSums:
    """Sums over the requests of a candidate whose engine reports its steps.

    sums: None if an account contradicts itself; `contradictions` says where, at most `MOST` of them and their number.
    """

    arm: str
    sums: DraftSums | None
    contradictions: tuple[str, ...] = ()


def run_draft_sums(session: Session, run: str) -> tuple[ArmDraftSums, ...]:
    """The sums of each candidate of a run that drafted, arms by name; endpoints are left out."""
    query = select(ArmRow).join(RunRow, RunRow.id == ArmRow.run_id).where(RunRow.ulid == run)
    arms = session.scalars(query.where(ArmRow.kind == ArmKind.CANDIDATE.value)).all()
    own = [arm for arm in sorted(arms, key=lambda arm: arm.name) if reports_steps(Effective.from_json(arm.effective))]
    found = (sums_of(arm.name, tuple(recorded_drafts(session, arm))) for arm in own)
    return tuple(one for one in found if one.sums is None or one.sums.requests)


def sums_of(arm: str, requests: Sequence[RequestDrafts]) -> ArmDraftSums:
    """The sums over an arm's requests."""
    broken = [found for one in requests if (found := one.contradiction) is not None]
    if broken:
        return ArmDraftSums(arm, None, shortened(broken))
    return ArmDraftSums(arm, draft_sums(DraftTotals(one.steps, one.drafted, one.accepted) for one in requests))


def shortened(broken: Sequence[str]) -> tuple[str, ...]:
    """The first contradictions, with the number of the others."""
    more = len(broken) - MOST
    return (*broken[:MOST], *([f"{more} more"] if more > 0 else []))


def recorded_drafts(session: Session, arm: ArmRow) -> Iterator[RequestDrafts]:
    """The drafts of an arm's requests, in the order in which they finished."""
    for _, case, sample, domain, emitted, drafted, accepted, steps in session.execute(requests_of(arm)):
        plan = None if steps is None else tuple((step[1], step[2]) for step in json.loads(steps) if step[1])
        count = None if plan is None else len(plan)
        yield RequestDrafts(RequestKey(arm.name, case, sample), domain, emitted, count, drafted, accepted, plan or ())


def requests_of(arm: ArmRow) -> Any:
    """The query of an arm's requests: number, case, sample, domain, output, drafted and accepted tokens, steps."""
    columns = (RequestRow.id, RequestRow.case_id, RequestRow.sample, RequestRow.domain, RequestRow.n_output)
    counts = (RequestRow.n_drafted, RequestRow.n_accepted, RequestStepsRow.steps)
    query = select(*columns, *counts).outerjoin(RequestStepsRow, RequestStepsRow.request_id == RequestRow.id)
    return query.where(RequestRow.arm_id == arm.id).order_by(RequestRow.id)
