"""The end of a run: why interim looks stopped it, what an undecided check leaves, and the next command after it."""

import shlex
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from audit.evidence.verdicts import SHORT_OF, Verdict
from audit.runs.interim_looks import interim_look_lines
from audit.store import StoredCheck, StoredRun
from audit.store.base.connection import default_url, parse_url, shown

LONGEST: Final = 100
"""Characters of a reason; the table of verdicts has the whole."""

UNDECIDED: Final = 3
"""The exit code."""


def look_lines(run: StoredRun, checks: Sequence[StoredCheck]) -> list[str]:
    """Summary lines of a run with a stop rule, with what is left if it ended undecided; empty for other runs."""
    lines = interim_look_lines(run.events)
    return lines + left_lines(checks) if lines and run.exit_code == UNDECIDED else lines


def left_lines(checks: Sequence[StoredCheck]) -> list[str]:
    """One line per arm that is not decided, with its undecided checks and why."""
    lines = (
        _line([check for check in checks if check.arm == arm]) for arm in dict.fromkeys(check.arm for check in checks)
    )
    return [line for line in lines if line]


def _line(checks: Sequence[StoredCheck]) -> str | None:
    verdicts = {check.verdict for check in checks}
    left = [check for check in checks if check.verdict is Verdict.INCONCLUSIVE or check.lacking]
    if Verdict.FAULT in verdicts:
        return None
    if left:
        return f"left in {checks[0].arm}: " + "; ".join(f"{item.check} ({reason_of(item)})" for item in left)
    return None if Verdict.CERTIFIED in verdicts else f"left in {checks[0].arm}: no check applies to this arm"


def reason_of(check: StoredCheck) -> str:
    """The reason why a check is undecided, in a clause."""
    if check.lacking:
        return _short(f"not run: {check.summary}")
    if SHORT_OF not in check.details and is_wide(check):
        return f"bound {check.bound:.3g}, margin {check.margin:g}"
    return _short(check.summary)


def is_wide(check: StoredCheck) -> bool:
    """True if the bound is above the margin."""
    return check.bound is not None and check.margin is not None and check.bound > check.margin


def _short(summary: str) -> str:
    """The first clause."""
    return textwrap.shorten(summary.split(";", 1)[0], LONGEST, placeholder=" ...")


TIMES = 10
"""Tokens that the suggested run may emit, in multiples of this run's."""


def next_steps(run: StoredRun, checks: Sequence[StoredCheck], store: str) -> list[str]:
    """The commands that show and shrink a fault, or the one that may decide an undecided run; none after a pass."""
    # AUDIT_STORE and the default folder hold for the next command too
    at = "" if store == shown(parse_url(default_url())) else f" --store {shlex.quote(store)}"
    if run.exit_code == UNDECIDED:
        return [f"{_undecided_step(run, checks)}{at}"]
    faulty = [check for check in checks if check.verdict is Verdict.FAULT]
    # a finding may name a request of a plain arm
    requests = (one.request for check in faulty for one in check.findings if one.request.startswith(f"{check.arm}/"))
    named = next(requests, None)
    if named is None:
        return []
    place = f"{run.ulid} {shlex.quote(named)}{at}"
    return [f"audit show {place}", f"audit minimize {place}"]


def _undecided_step(run: StoredRun, checks: Sequence[StoredCheck]) -> str:
    """The command, with the change to the suite that it needs.

    Evidence that was not recorded comes first, because more tokens do not replace it. Repetitions help
    sampled arms only: a greedy arm repeats its own tokens.
    """
    suite = shlex.quote(next((used.name for used in run.artifacts if used.role == "suite"), run.suite_name))
    if any(check.lacking for check in checks):
        return f"give the arms the evidence that is missing (often record: full), then: audit run {suite}"
    undecided = {check.arm for check in checks if check.verdict is Verdict.INCONCLUSIVE}
    if not undecided:
        return f"give every arm a check that applies to it, then: audit run {suite}"
    unmet = _unmet([check for check in checks if check.verdict is Verdict.INCONCLUSIVE])
    if unmet:
        names = ", ".join(unmet)
        return f"meet {names}, or write coverage: {{waive: [{names}]}}, then: audit run {suite}"
    if any(_greedy(run, name) for name in undecided):
        return f"more prompts: audit plan {suite}"
    return f"more samples: audit run {suite} --until decided --max-tokens {TIMES * (run.tokens or 0)}"


def _unmet(undecided: Iterable[StoredCheck]) -> list[str]:
    """The situations that no request met, if nothing else keeps the checks undecided: more of the same may not help."""
    short = [check.details.get(SHORT_OF) or {} for check in undecided]
    met = any(count for counts in short for count in counts.values())
    return [] if met or not all(short) else list(dict.fromkeys(name for counts in short for name in counts))


def _greedy(run: StoredRun, arm: str) -> bool:
    spec = next((other.spec for other in run.arms if other.name == arm), {})
    return not (spec.get("sampling") or {}).get("temperature")
