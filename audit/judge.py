"""Runs the checks of a stored run and decides its exit code.

A check sees what is in the store and nothing else, so a run can be judged again
later, elsewhere, without the models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial

from audit.arms import PlannedArm
from audit.checks import load
from audit.checks.base import Verdict, evaluate
from audit.records import Evidence
from audit.store import Store, StoredCheck


def judge(arms: Iterable[PlannedArm], store: Store, run: str, announce: Callable[[str], None]) -> None:
    """Run every candidate's checks and store their results."""
    # neighbouring candidates share a baseline and a control; more of them would fill the memory
    reference = lru_cache(maxsize=2)(partial(store.load_arm, run))
    listed = tuple(arms)
    for planned in listed:
        if planned.spec is None:
            continue
        announce(planned.name)
        evidence = Evidence(
            candidate=store.load_arm(run, planned.name),
            baseline=reference(planned.baseline) if planned.baseline else None,
            control=reference(planned.control) if planned.control else None,
            companions={each.kind: store.load_arm(run, each.name) for each in listed if each.of == planned.name},
        )
        for name, overrides in planned.spec.checks.items():
            check = load(name)
            result = evaluate(check, evidence, overrides)
            store.add_check(run, planned.name, name, check.claim, evidence.candidate.level, result)


def exit_code(checks: Iterable[StoredCheck]) -> int:
    """0 if everything that ran is certified, 1 with a fault, 3 where nothing can be decided.

    A check that does not apply (`not_run`) decides nothing by itself, but an arm
    without a single certified check is not a pass.
    """
    verdicts: dict[str, set[Verdict]] = {}
    for each in checks:
        verdicts.setdefault(each.arm, set()).add(each.verdict)
    if any(Verdict.FAULT in found for found in verdicts.values()):
        return 1
    certified = all(Verdict.CERTIFIED in found for found in verdicts.values())
    inconclusive = any(Verdict.INCONCLUSIVE in found for found in verdicts.values())
    return 0 if verdicts and certified and not inconclusive else 3
