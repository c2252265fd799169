"""Drafts of an arm's requests as the engine's own steps give them, and their sums, which the store keeps.

Endpoints report no steps: `audit.store.sums.drafts` reads their accounts, which go when a trace is erased.

Drafts of each request of an arm, in the order in which requests finished, and what a server's counters say.

An engine's own steps give them where they are on record, else the account in each answer (`audit.store.sums.accounts`).

Counts of the versions of drafts that learn, from the steps on record.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.evidence.records import ArmKind
from audit.stats.acceptance.estimators import DraftSums, DraftTotals, contradiction, draft_sums
from audit.store.base.values import CountSource, DraftCounts, RequestKey
from audit.store.sums.accounts import ANSWERED, COUNTED, OWN, counted, facts_of, reports_steps
from audit.store.tables.runs import ArmRow, RequestRow, RequestStepsRow, RunRow, find_run
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
        text = contradiction(self.steps, self.drafted, self.accepted, self.emitted)
        return None if text is None else f"{self.key.short}: {text}"


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
    result = (sums_of(arm.name, tuple(recorded_drafts(session, arm))) for arm in own)
    return tuple(one for one in result if one.sums is None or one.sums.requests)


def sums_of(arm: str, requests: Sequence[RequestDrafts]) -> ArmDraftSums:
    """The sums over an arm's requests."""
    broken = [result for one in requests if (result := one.contradiction) is not None]
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
    """The suite's own requests in an arm: number, case, sample, domain, output, drafted and accepted tokens, steps."""
    columns = (RequestRow.id, RequestRow.case_id, RequestRow.sample, RequestRow.domain, RequestRow.n_output)
    counts = (RequestRow.n_drafted, RequestRow.n_accepted, RequestStepsRow.steps)
    query = select(*columns, *counts).outerjoin(RequestStepsRow, RequestStepsRow.request_id == RequestRow.id)
    return query.where(RequestRow.arm_id == arm.id, OWN).order_by(RequestRow.id)


@dataclass(frozen=True, slots=True)
class CounterGrowth:
    """Growth of a server's counters over a run; `steps` with a draft, None if it does not count them."""

    steps: int | None
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class ArmDrafts:
    """Requests whose drafts are known. `uncounted` is the number of answered ones whose drafts nobody counted."""

    requests: tuple[RequestDrafts, ...]
    counters: CounterGrowth | None = None
    uncounted: int = 0


def arm_drafts(session: Session, ulid: str, arm: str) -> ArmDrafts:
    """The drafts of an arm's requests; empty without such an arm."""
    query = select(ArmRow).where(ArmRow.run_id == find_run(session, ulid).id, ArmRow.name == arm)
    row = session.scalars(query).one_or_none()
    if row is None:
        return ArmDrafts(())
    effective = Effective.from_json(row.effective)
    if reports_steps(effective):
        return ArmDrafts(tuple(recorded_drafts(session, row)))
    facts = dict(facts_of(session, row))
    growth = counted(effective, list(facts.values()))
    counters = None
    if growth.source is CountSource.COUNTERS and growth.drafted is not None and growth.accepted is not None:
        counters = CounterGrowth(_drafts(facts.values()), growth.drafted, growth.accepted)
    known, uncounted = [], 0
    for number, case, sample, domain, emitted, *_ in session.execute(requests_of(row)):
        told = facts.get(number, {})
        if "error" in told:
            continue
        mapping = _account(RequestKey(row.name, case, sample), domain, emitted, told.get(ANSWERED))
        known += [] if mapping is None else [mapping]
        uncounted += mapping is None
    return ArmDrafts(tuple(known), counters, uncounted)


def _account(key: RequestKey, domain: str, emitted: int, account: Any) -> RequestDrafts | None:
    if not isinstance(account, Mapping):
        return None
    drafted, accepted, steps = (account.get(name) for name in ("drafted", "accepted", "steps"))
    if not isinstance(drafted, int) or not isinstance(accepted, int):
        return None
    item, kept = (account.get(name) for name in ("per_step_drafted", "per_step_accepted"))
    plan: Sequence[tuple[int, int]] = ()
    if isinstance(item, Sequence) and isinstance(kept, Sequence) and len(item) == len(kept):
        plan = [(many, few) for many, few in zip(item, kept, strict=True) if many]
        steps = len(plan)
    return RequestDrafts(
        key, domain, emitted, steps if isinstance(steps, int) else None, drafted, accepted, tuple(plan)
    )


def _drafts(facts: Any) -> int | None:
    """Growth of the counter of drafts that vLLM and llama.cpp have."""
    grown = [
        value
        for fact in facts
        if COUNTED in fact
        for name, value in fact[COUNTED].get("samples", {}).items()
        if name.endswith("spec_decode_num_drafts_total")
    ]
    return int(sum(grown)) if grown else None


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
