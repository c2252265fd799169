"""Runs the checks of a stored run and decides its exit code.

A check sees only the store, so a run can be judged again
later, elsewhere, without the models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import lru_cache, partial

from audit.checks import load
from audit.checks.interface import evaluate
from audit.evidence.verdicts import CheckResult, Verdict
from audit.runs.arms import Arm, evidence_for
from audit.runs.interim_looks import InterimLook, at_interim_look
from audit.store import Store, StoredCheck

NEIGHBOURS = 8
"""Number of cached arms: neighbouring candidates share a baseline and its controls; more would fill the memory."""


def judge(
    arms: Iterable[Arm], store: Store, run: str, announce: Callable[[str], None], look: InterimLook | None = None
) -> None:
    """Run every candidate's checks and store their results; a `look` gives its share of the error probabilities."""
    listed = tuple(arms)
    record_of = lru_cache(maxsize=NEIGHBOURS)(partial(store.load_arm, run))
    for planned in listed:
        if planned.spec is None:
            continue
        announce(planned.name)
        evidence = evidence_for(planned, listed, record_of)
        for name, overrides in planned.spec.checks.items():
            check = load(name)
            result = _with_look(evaluate(check, evidence, at_interim_look(check, overrides, look)), look)
            store.add_check(run, planned.name, name, check.claim, evidence.candidate.level, result)


def _with_look(result: CheckResult, look: InterimLook | None) -> CheckResult:
    """The result with the number of its look."""
    if look is None:
        return result
    return dataclasses.replace(result, details={**result.details, "look": {"number": look.number, "share": look.share}})


def exit_code(checks: Iterable[StoredCheck]) -> int:
    """0 if every check that ran is certified, 1 with a fault, else 3.

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
