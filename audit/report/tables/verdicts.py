"""The verdict table and the arm table of a run, as rows.

The record levels of a run's candidates: in effect, and as the suite requested them.

The mechanism that best explains a broken law, and the scope of each arm's verdicts: batches and drafts of its record,
its numerics and its device. Showing a run needs no numpy, and counting its situations does (`coverage`).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from audit.evidence.coverage.scope import ArmScope, scope_of_details
from audit.evidence.verdicts import Verdict
from audit.store import StoredArm, StoredCheck
from audit.store.base.values import CountSource
from engine.core.sequences import grouped

VERDICTS: Final = ("arm", "check", "claim", "verdict", "evidence", "n", "what was found")
ARMS: Final = ("arm", "kind", "lossless", "requests", "tokens", "forwards", "drafted", "accepted", "tokens/forward")
MECHANISMS: Final[Mapping[str, str]] = {
    "draft leak": "drafted tokens were kept more often than min(1, p / q) allows",
    "p to the power": "tokens were drawn at another temperature",
    "argmax leak": "the most likely token was taken where one is to be drawn",
    "argmax loss": "the most likely token was passed over, as by a correction that is not normalised",
    "repeat of the previous token": "tokens were emitted twice",
    "previous row": "tokens were drawn from the row before theirs",
    "refused draft token": "drafted tokens were emitted after they had been refused",
    "copy": "tokens copied from the text were kept unverified",
    "any token": "tokens were drawn from damaged rows",
    "without": "temperature, truncation, penalties or bias were not applied everywhere",
}
"""By words of an alternative's name."""
LEADS: Final = 0.5
"""Share of the evidence from which on one alternative explains it better than all others together."""
SURE: Final = math.log(1000)
"""The log e-value of an alternative against the target's law that is worth a line."""


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
    requested = ((arm, level) for arm in arms if (level := arm.spec.get("requested_record")))
    pairs = grouped((f"{arm.effective.record}, requested {level}", arm.name) for arm, level in requested)
    yield from (f"{levels}: {', '.join(names)}" for levels, names in pairs.items())


def mechanism_lines(checks: Iterable[StoredCheck]) -> Iterator[str]:
    """One line for each check of a law that is broken in a way that one alternative explains."""
    for check in checks:
        leaders = check.details.get("alternatives") if check.verdict is Verdict.FAULT else None
        if leaders and leaders[0]["share"] >= LEADS and leaders[0].get("log_e", 0.0) >= SURE:
            yield f"{check.arm}: {check.check}: as if {mechanism_of(leaders[0]['name'])}"


def mechanism_of(alternative: str) -> str:
    """The alternative of that name in words, with its places."""
    place, _, kind = alternative.rpartition(": ")
    words = next((text for name, text in MECHANISMS.items() if name in kind), kind)
    return f"{words} ({place})" if place else words


def scopes(checks: Iterable[StoredCheck]) -> dict[str, ArmScope]:
    """By arm, the scope that its results name; all results of an arm name the same."""
    result: dict[str, ArmScope] = {}
    for check in checks:
        scope = scope_of_details(check.details)
        if scope is not None:
            result.setdefault(check.arm, scope)
    return result


def scope_rows(checks: Iterable[StoredCheck]) -> list[tuple[Any, ...]]:
    """One row per arm; an empty cell where the record does not show it."""
    return [
        (arm, _batches(scope), scope.longest_draft, scope.shape, scope.numerics, scope.device)
        for arm, scope in scopes(checks).items()
    ]


def _batches(scope: ArmScope) -> str | None:
    low, high = scope.smallest_batch, scope.largest_batch
    return None if low is None else str(low) if low == high else f"{low} to {high}"
