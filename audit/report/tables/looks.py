"""The end of a run with interim looks: when and why it stopped, and what an undecided one leaves, by check."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from audit.evidence.verdicts import SHORT_OF, Verdict
from audit.runs.interim_looks import interim_look_lines
from audit.store import StoredCheck, StoredRun

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
        return f"left in {checks[0].arm}: " + "; ".join(f"{item.check} ({_reason(item)})" for item in left)
    return None if Verdict.CERTIFIED in verdicts else f"left in {checks[0].arm}: no check applies to this arm"


def _reason(check: StoredCheck) -> str:
    if check.lacking:
        return _short(f"not run: {check.summary}")
    if SHORT_OF in check.details or check.bound is None or check.margin is None or check.bound <= check.margin:
        return _short(check.summary)
    return f"bound {check.bound:.3g}, margin {check.margin:g}"


def _short(summary: str) -> str:
    """The first clause."""
    return textwrap.shorten(summary.split(";", 1)[0], LONGEST, placeholder=" ...")
