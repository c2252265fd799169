"""The estimators of acceptance of a run's arms, from the drafts of each request in the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from audit.stats.acceptance_estimators import AcceptanceEstimate, DraftTotals, contradiction, estimates
from audit.store import Store, StoredArm, StoredRun
from audit.store.request_drafts import ArmDrafts

MOST: Final = 3
"""Most contradictions of an arm that are named."""


@dataclass(frozen=True, slots=True)
class ArmEstimates:
    """The estimates of one arm, none if its account contradicts itself; then `contradictions` says where."""

    arm: str
    values: tuple[AcceptanceEstimate, ...]
    contradictions: tuple[str, ...] = ()


def run_estimates(store: Store, run: StoredRun) -> tuple[ArmEstimates, ...]:
    """The estimates of every candidate whose drafts somebody counted."""
    found = (arm_estimates(arm, store.figures.drafts(run.ulid, arm.name)) for arm in run.candidates if _counts(arm))
    return tuple(one for one in found if one.values or one.contradictions)


def _counts(arm: StoredArm) -> bool:
    return bool(arm.counts.drafted)


def arm_estimates(arm: StoredArm, drafts: ArmDrafts) -> ArmEstimates:
    """The estimates of one arm; requests that nobody counted leave only those of the server's counters."""
    broken = tuple(_contradictions(drafts))
    if broken:
        return ArmEstimates(arm.name, (), _shortened(broken))
    totals = [DraftTotals(one.steps, one.drafted, one.accepted, one.emitted) for one in drafts.requests]
    counters = None
    if drafts.counters is not None:
        counters = DraftTotals(drafts.counters.steps, drafts.counters.drafted, drafts.counters.accepted)
    return ArmEstimates(arm.name, estimates([] if drafts.uncounted else totals, counters))


def _contradictions(drafts: ArmDrafts) -> Iterator[str]:
    for one in drafts.requests:
        found = contradiction(one.steps, one.drafted, one.accepted, one.emitted)
        if found is not None:
            yield f"{one.key.short}: {found}"
    if drafts.counters is not None:
        found = contradiction(drafts.counters.steps, drafts.counters.drafted, drafts.counters.accepted)
        if found is not None:
            yield f"the server's counters: {found}"


def _shortened(broken: Sequence[str]) -> tuple[str, ...]:
    more = len(broken) - MOST
    return (*broken[:MOST], *([f"{more} more"] if more > 0 else []))


def contradiction_lines(arms: Sequence[ArmEstimates]) -> list[str]:
    """Return one line per arm whose account of its drafts contradicts itself."""
    return [
        f"arm {one.arm}: no estimate of acceptance, its account contradicts itself: {'; '.join(one.contradictions)}"
        for one in arms
        if one.contradictions
    ]
