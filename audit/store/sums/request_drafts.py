"""Drafts of each request of an arm, in the order in which requests finished, and what a server's counters say.

An engine's own steps give them where they are on record, else the account in each answer (`audit.store.sums.accounts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from audit.store.base.values import CountSource, RequestKey
from audit.store.sums.accounts import ANSWERED, COUNTED, counted, facts_of, reports_steps
from audit.store.sums.drafts import RequestDrafts, recorded_drafts, requests_of
from audit.store.tables.runs import ArmRow
from audit.store.writing.writer import find_run
from engine.record.effective import Effective


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
    return _answered(session, row, effective)


def _answered(session: Session, arm: ArmRow, effective: Effective) -> ArmDrafts:
    facts = dict(facts_of(session, arm))
    growth = counted(effective, list(facts.values()))
    counters = None
    if growth.source is CountSource.COUNTERS and growth.drafted is not None and growth.accepted is not None:
        counters = CounterGrowth(_drafts(facts.values()), growth.drafted, growth.accepted)
    known, uncounted = [], 0
    for number, case, sample, domain, emitted, *_ in session.execute(requests_of(arm)):
        told = facts.get(number, {})
        if "error" in told:
            continue
        found = _account(RequestKey(arm.name, case, sample), domain, emitted, told.get(ANSWERED))
        known += [] if found is None else [found]
        uncounted += found is None
    return ArmDrafts(tuple(known), counters, uncounted)


def _account(key: RequestKey, domain: str, emitted: int, account: Any) -> RequestDrafts | None:
    if not isinstance(account, Mapping):
        return None
    drafted, accepted, steps = (account.get(name) for name in ("drafted", "accepted", "steps"))
    if not isinstance(drafted, int) or not isinstance(accepted, int):
        return None
    each, kept = (account.get(name) for name in ("per_step_drafted", "per_step_accepted"))
    plan: Sequence[tuple[int, int]] = ()
    if isinstance(each, Sequence) and isinstance(kept, Sequence) and len(each) == len(kept):
        plan = [(many, few) for many, few in zip(each, kept, strict=True) if many]
        steps = len(plan)
    return RequestDrafts(
        key, domain, emitted, steps if isinstance(steps, int) else None, drafted, accepted, tuple(plan)
    )


def _drafts(facts: Any) -> int | None:
    """Growth of the counter of drafts that vLLM and llama.cpp have."""
    grown = [
        value
        for each in facts
        if COUNTED in each
        for name, value in each[COUNTED].get("samples", {}).items()
        if name.endswith("spec_decode_num_drafts_total")
    ]
    return int(sum(grown)) if grown else None
