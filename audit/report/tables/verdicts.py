"""The verdict table and the arm table of a run, as rows.

The record levels of a run's candidates: in effect, and as the suite requested them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from audit.evidence.verdicts import Verdict
from audit.store import StoredArm, StoredCheck
from audit.store.base.values import CountSource

VERDICTS: Final = ("arm", "check", "claim", "verdict", "evidence", "n", "what was found")
ARMS: Final = ("arm", "kind", "lossless", "requests", "tokens", "forwards", "drafted", "accepted", "tokens/forward")


def verdict_rows(checks: Iterable[StoredCheck]) -> list[tuple[Any, ...]]:
    """One row per arm and check."""
    return [(c.arm, c.check, c.claim, c.verdict.value, c.level.name, c.n, c.summary) for c in checks]


def arm_rows(arms: Iterable[StoredArm]) -> list[tuple[Any, ...]]:
    """Counts per arm, and tokens per target forward."""
    return [_arm(arm) for arm in arms]


def _arm(arm: StoredArm) -> tuple[Any, ...]:
    counts = arm.counts
    rate = counts.output / counts.steps if counts.steps else None
    return (
        arm.name,
        arm.kind.value,
        "yes" if arm.lossless else "no",
        counts.requests,
        counts.output,
        counts.steps,
        counts.drafted,
        counts.accepted,
        rate,
    )


def account_lines(arms: Iterable[StoredArm]) -> list[str]:
    """Return one line per arm whose numbers of drafts are not counted from recorded steps."""
    return [f"arm {arm.name}: {_account(arm)}" for arm in arms if arm.counts.source is not CountSource.RECORD]


def _account(arm: StoredArm) -> str:
    counts = arm.counts
    if counts.source is CountSource.UNKNOWN:
        return "forwards, drafted and accepted are unknown (-): the server gives no account that covers every request"
    if counts.source is CountSource.SERVER:
        return "nothing is drafted, the server states that it does not speculate; forwards are unknown (-)"
    missing = [name for name in ("steps", "accepted") if getattr(counts, name) is None]
    unknown = f"; unknown (-): {', '.join('forwards' if name == 'steps' else name for name in missing)}"
    words = {
        CountSource.ANSWERS: "from the server's answers, per request",
        CountSource.COUNTERS: "from the server's counters, per run and with all its clients",
    }[counts.source]
    return f"drafted and accepted {words}" + (unknown if missing else "")


def faults_of(arms: Iterable[StoredArm]) -> dict[str, str]:
    """The faults of the arms that are broken on purpose, by arm."""
    return {arm.name: arm.fault for arm in arms if arm.fault}


def marked(rows: Iterable[Sequence[Any]], faults: Mapping[str, str]) -> list[tuple[Any, ...]]:
    """Rows whose first column names an arm, with the fault beside the name of each arm that is broken on purpose."""
    return [(marked_name(row[0], faults.get(row[0])), *row[1:]) for row in rows]


def marked_name(arm: str, fault: str | None) -> str:
    """The name of an arm as tables show it."""
    return f"{arm} (broken on purpose: {fault})" if fault else arm


def finding_lines(checks: Iterable[StoredCheck], most: int = 3) -> list[str]:
    """Return the first findings of every faulty check, one line each."""
    return [
        f"{check.check}: {finding.request} step {finding.step}: {finding.message}"
        for check in checks
        if check.verdict is Verdict.FAULT
        for finding in check.findings[:most]
    ]


def lossy_lines(arms: Iterable[StoredArm]) -> list[str]:
    """Return one line per arm with a lossy verification rule, because its verdicts refer to that rule."""
    return [f"arm {arm.name} is lossy by declaration: {_rule(arm)}" for arm in arms if not arm.lossless]


def waived_lines(checks: Iterable[StoredCheck]) -> list[str]:
    """Return one line per arm whose suite waives a second look at a quantity, with the reasons."""
    lines = []
    for check in checks:
        waived, once = check.details.get("waived") or {}, check.details.get("looked_at_once", ())
        named = [f"{name} ({waived[name]})" for name in once if name in waived]
        if named:
            lines.append(f"arm {check.arm}, not looked at twice: {', '.join(named)}")
    return lines


def _rule(arm: StoredArm) -> str:
    options = arm.effective.verifier_options
    settings = ", ".join(f"{key} {value:g}" for key, value in options.items())
    return (arm.effective.protocol or "an unnamed rule") + (f" ({settings})" if settings else "")


def conclusion(exit_code: int | None) -> str:
    """Describe the exit code of a run."""
    return {
        0: "PASS: every check that applies is certified",
        1: "FAIL: at least one claim is broken",
        3: "UNDECIDED: at least one check or arm has too little evidence; that is not a pass",
    }.get(exit_code if exit_code is not None else -1, "UNFINISHED: the run has not ended")


def record_lines(arms: Iterable[StoredArm]) -> Iterator[str]:
    """A line for each pair of levels, with its arms; arms that got the level that they requested have none."""
    pairs: dict[str, list[str]] = {}
    for arm in arms:
        requested = arm.spec.get("requested_record")
        if requested:
            pairs.setdefault(f"{arm.effective.record}, requested {requested}", []).append(arm.name)
    yield from (f"{levels}: {', '.join(names)}" for levels, names in pairs.items())
