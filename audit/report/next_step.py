"""What to type after a run that ended undecided."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from audit.evidence.verdicts import Verdict
from audit.store import StoredCheck, StoredRun

TIMES = 10
"""Tokens that the suggested run may emit, in multiples of this run's."""
UNDECIDED = 3


def next_step(run: StoredRun, checks: Iterable[StoredCheck], store: str) -> str | None:
    """The next command, with the change to the suite that it needs; None for a run that is decided.

    Evidence that was not recorded comes first, because more tokens do not replace it. Repetitions help
    sampled arms only: a greedy arm repeats its own tokens.
    """
    if run.exit_code != UNDECIDED:
        return None
    listed = list(checks)
    suite, at = shlex.quote(_suite(run)), f" --store {shlex.quote(store)}"
    if any(check.lacking for check in listed):
        return f"give the arm the evidence that the table names (often record: full), then: audit run {suite}{at}"
    undecided = {check.arm for check in listed if check.verdict is Verdict.INCONCLUSIVE}
    if not undecided:
        return f"give every arm a check that applies to it, then: audit run {suite}{at}"
    if any(_greedy(run, name) for name in undecided):
        return f"more prompts: audit plan {suite}{at}"
    return f"more samples: audit run {suite} --until decided --max-tokens {TIMES * (run.tokens or 0)}{at}"


def _suite(run: StoredRun) -> str:
    return next((used.name for used in run.artifacts if used.role == "suite"), run.suite_name)


def _greedy(run: StoredRun, arm: str) -> bool:
    spec = next((each.spec for each in run.arms if each.name == arm), {})
    return not (spec.get("sampling") or {}).get("temperature")
