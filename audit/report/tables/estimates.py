"""The estimators of acceptance of a run's arms, from the drafts of each request in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from audit.stats.acceptance.estimators import AcceptanceEstimate, DraftTotals, contradiction, estimates
from audit.store import Store, StoredArm, StoredRun
from audit.store.sums.drafts import ArmDraftSums, sums_of
from audit.store.sums.request_drafts import ArmDrafts


@dataclass(frozen=True, slots=True)
class ArmEstimates:
    """The estimates of one arm, none if its account contradicts itself; then `contradictions` says where."""

    arm: str
    values: tuple[AcceptanceEstimate, ...]
    contradictions: tuple[str, ...] = ()


def run_estimates(store: Store, run: StoredRun) -> tuple[ArmEstimates, ...]:
    """The estimates of every candidate whose drafts somebody counted."""
    known = {one.arm: one for one in store.figures.draft_sums(run.ulid)}
    found = (_estimates(store, run, arm, known.get(arm.name)) for arm in run.candidates if arm.counts.drafted)
    return tuple(one for one in found if one.values or one.contradictions)


def _estimates(store: Store, run: StoredRun, arm: StoredArm, known: ArmDraftSums | None) -> ArmEstimates:
    if known is None:
        return arm_estimates(arm, store.figures.drafts(run.ulid, arm.name))
    return ArmEstimates(arm.name, estimates(known.sums), known.contradictions)


def arm_estimates(arm: StoredArm, drafts: ArmDrafts) -> ArmEstimates:
    """The estimates of one arm; requests that nobody counted leave only those of the server's counters."""
    known, grown = sums_of(arm.name, drafts.requests), drafts.counters
    found = None if grown is None else contradiction(grown.steps, grown.drafted, grown.accepted)
    broken = (*known.contradictions, *([] if found is None else [f"the server's counters: {found}"]))
    if broken:
        return ArmEstimates(arm.name, (), broken)
    counters = None if grown is None else DraftTotals(grown.steps, grown.drafted, grown.accepted)
    return ArmEstimates(arm.name, estimates(None if drafts.uncounted else known.sums, counters))


def contradiction_lines(arms: Sequence[ArmEstimates]) -> list[str]:
    """Return one line per arm whose account of its drafts contradicts itself."""
    return [
        f"arm {one.arm}: no estimate of acceptance, its account contradicts itself: {'; '.join(one.contradictions)}"
        for one in arms
        if one.contradictions
    ]
