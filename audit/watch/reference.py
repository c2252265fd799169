"""The rate that a watch compares with: what a run certified, less a tolerance, or a number."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from audit.errors import UserError
from audit.evidence.records import ArmKind
from audit.stats.clusters import ratio_interval
from audit.store import Store, StoredArm, StoredCheck
from audit.store.base.values import Resolution

CONFIDENCE: Final = 0.98
"""Two-sided, so that the lower end has 99 %; the interval of the check acceptance_drift."""
FEWEST: Final = 10
"""Prompts that an interval needs."""
DRIFT: Final = "acceptance_drift"


@dataclass(frozen=True, slots=True)
class WatchedRate:
    """A rate, where it comes from, and the draft length of the run's arm."""

    rate: float
    origin: str
    gamma: int | None = None


def given(rate: float) -> WatchedRate:
    """A rate that the user states. Raises UserError: outside 0 to 1."""
    if not 0.0 < rate < 1.0:
        raise UserError(f"--reference {rate}: write accepted tokens per drafted token, above 0 and below 1")
    return WatchedRate(rate, "given")


def of_run(store: Store, run: str, arm: str | None, tolerance: float) -> WatchedRate:
    """The lower end of an arm's acceptance, less a share `tolerance` of it.

    Raises:
        UserError: no such arm, several arms, or no interval of its acceptance.
    """
    if not 0.0 <= tolerance < 1.0:
        raise UserError(f"--tolerance {tolerance}: write a share of the certified rate, from 0 to below 1")
    chosen = _arm(store.load_run(run).arms, arm, run)
    bound = lower_bound(store, run, chosen, store.checks(run))
    rate = bound.rate * (1.0 - tolerance)
    if not 0.0 < rate < 1.0:
        raise UserError(
            f"arm {chosen.name} of {run}: its lower bound of acceptance is {bound.rate:.3f}; give --reference RATE"
        )
    origin = f"{bound.origin} of arm {chosen.name}, {bound.rate:.4f}, less {tolerance:g}"
    return WatchedRate(rate, origin, chosen.effective.gamma)


def _arm(arms: Sequence[StoredArm], name: str | None, run: str) -> StoredArm:
    drafting = [arm for arm in arms if arm.counts.drafted]
    fits = [arm for arm in arms if arm.name == name] if name else [a for a in drafting if a.kind is ArmKind.CANDIDATE]
    if len(fits) == 1:
        return fits[0]
    names = ", ".join(arm.name for arm in drafting) or "none"
    if name or not fits:
        raise UserError(f"{run}: no arm {name or 'that drafted'}; arms with drafts: {names}; or give --reference RATE")
    raise UserError(f"{run}: several arms drafted; choose one with --arm: {names}")


def lower_bound(store: Store, run: str, arm: StoredArm, checks: Iterable[StoredCheck]) -> WatchedRate:
    """The lower end of an arm's acceptance, by the check of drift among `checks`, else over the run's prompts.

    Raises:
        UserError: no interval of its acceptance.
    """
    for check in checks:
        rates = check.details.get("rates") if check.check == DRIFT and check.arm == arm.name else None
        low = rates["all"]["low"] if isinstance(rates, dict) and isinstance(rates.get("all"), dict) else None
        if isinstance(low, float):
            return WatchedRate(low, f"lower bound by {DRIFT}")
    if arm.counts.resolution is not Resolution.STEP:
        raise UserError(
            f"arm {arm.name} of {run}: its drafts are counted by the server only, without an interval; "
            "give --reference RATE"
        )
    counts = store.watches.prompts(run, arm.name)
    prompts = {case: place for place, case in enumerate(sorted({row.case_id for row in counts}))}
    place = np.array([prompts[row.case_id] for row in counts])
    drafted, accepted = (
        np.array([getattr(row, name) for row in counts], dtype=float) for name in ("drafted", "accepted")
    )
    if len(prompts) < FEWEST or not drafted.sum():
        raise UserError(f"arm {arm.name} of {run}: fewer than {FEWEST} prompts; give --reference RATE")
    low = ratio_interval(accepted, drafted, place, CONFIDENCE).low
    return WatchedRate(low, f"lower bound over {len(prompts)} prompts")
