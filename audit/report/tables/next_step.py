"""The next command after an undecided run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from audit.evidence.verdicts import SHORT_OF, Verdict
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
    unmet = _unmet([check for check in listed if check.verdict is Verdict.INCONCLUSIVE])
    if unmet:
        names = ", ".join(unmet)
        return f"meet {names} as the table says, or write coverage: {{waive: [{names}]}}, then: audit run {suite}{at}"
    if any(_greedy(run, name) for name in undecided):
        return f"more prompts: audit plan {suite}{at}"
    return f"more samples: audit run {suite} --until decided --max-tokens {TIMES * (run.tokens or 0)}{at}"


def _unmet(undecided: Iterable[StoredCheck]) -> list[str]:
    """The situations that no request met, if nothing else keeps the checks undecided: more of the same may not help."""
    short = [check.details.get(SHORT_OF) or {} for check in undecided]
    met = any(count for counts in short for count in counts.values())
    return [] if met or not all(short) else list(dict.fromkeys(name for counts in short for name in counts))


def _suite(run: StoredRun) -> str:
    return next((used.name for used in run.artifacts if used.role == "suite"), run.suite_name)


def _greedy(run: StoredRun, arm: str) -> bool:
    spec = next((other.spec for other in run.arms if other.name == arm), {})
    return not (spec.get("sampling") or {}).get("temperature")
