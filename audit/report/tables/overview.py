"""The end of a run in a screen: a row per arm with its claims, the place of a fault, and all that a verdict lacks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.verdicts import SHORT_OF, Finding, Verdict
from audit.report.requests.generation import REJECTED, UNREACHED, token_lines
from audit.report.requests.pieces import Pieces
from audit.report.tables.looks import UNDECIDED, is_wide, reason_of
from audit.report.tables.results import Results
from audit.report.tables.verdicts import conclusion, faults_of
from audit.store import StoredArm, StoredCheck
from audit.text.unsafe import shortened
from engine.record.trace import Trace

ARMS: Final = ("arm", "accepted", "per forward", "claims")
MARKS: Final[Mapping[Verdict, str]] = {Verdict.FAULT: "!", Verdict.INCONCLUSIVE: "?", Verdict.CERTIFIED: "+"}
"""In the order in which they are shown."""
MOST: Final = 8
"""Faulty checks, and lines of what is missing."""
LONGEST: Final = 160
"""Characters of a fault or a reason; the table of verdicts has the whole."""
TOO_FEW: Final = "too wide or too few: add prompts or samples"
BEFORE: Final = 48
"""Characters of an answer before its first wrong token."""


def arm_rows(result: Results) -> list[tuple[Any, ...]]:
    """One row per candidate: drafted tokens that were kept, tokens per forward of the target, claims by verdict."""
    return [
        (
            arm.name,
            _accepted(arm),
            arm.counts.output / arm.counts.steps if arm.counts.steps else None,
            _claims([check for check in result.checks if check.arm == arm.name]),
        )
        for arm in result.run.candidates
    ]


def _accepted(arm: StoredArm) -> str:
    drafted, accepted = arm.counts.drafted, arm.counts.accepted
    if drafted is None or accepted is None:
        return "unknown"
    return f"{accepted / drafted:.0%} of {drafted}" if drafted else "nothing drafted"


def _claims(checks: Sequence[StoredCheck]) -> str:
    """The claims, each behind the mark of its worst verdict; those that do not exist for the arm are left out."""
    verdicts: dict[str, set[Verdict]] = {}
    for check in checks:
        verdicts.setdefault(check.claim, set()).add(Verdict.INCONCLUSIVE if check.lacking else check.verdict)
    worst = {claim: next((one for one in MARKS if one in reached), None) for claim, reached in verdicts.items()}
    marked = [f"{MARKS[verdict]}{claim}" for verdict in MARKS for claim in worst if worst[claim] is verdict]
    return " ".join(marked) or "no check applies"


def conclusion_of(result: Results) -> str:
    """The conclusion; of an undecided run also the tokens in which no check found a fault."""
    code, tokens = result.run.exit_code, sum(arm.counts.output for arm in result.run.candidates)
    if code != UNDECIDED:
        return conclusion(code)
    return f"UNDECIDED: no fault found in {tokens} tokens; too little evidence is not a pass"


def fault_lines(checks: Iterable[StoredCheck]) -> list[str]:
    """One line per faulty check, up to `MOST`."""
    faulty = [check for check in checks if check.verdict is Verdict.FAULT]
    lines = [f"{check.arm}: {check.check}: {shortened(check.summary, LONGEST)}" for check in faulty[:MOST]]
    return lines + ([f"and {len(faulty) - MOST} more, in audit show"] if len(faulty) > MOST else [])


def first_finding(checks: Iterable[StoredCheck]) -> Finding | None:
    """The first finding of a fault that names a step; findings about whole requests and arms have step 0."""
    faulty = (check for check in checks if check.verdict is Verdict.FAULT)
    return next((finding for check in faulty for finding in check.findings if finding.step), None)


def wrong_place(finding: Finding, trace: Trace, pieces: Pieces) -> str | None:
    """The answer up to a finding's step, and the step's tokens, a rejected one in brackets."""
    texts = pieces.text
    if texts is None:
        return None
    before, step = "", []
    for line in token_lines(trace):
        text, kept = texts(line.token), line.role not in (REJECTED, UNREACHED)
        if line.step < finding.step:
            before += text if kept else ""
        elif line.step == finding.step:
            step.append(repr(text) if kept else f"[{text!r}]")
    if not step:
        return None
    return f"{finding.request}, step {finding.step}: after {before[-BEFORE:]!r} came {' '.join(step)}"


def missing_lines(result: Results) -> list[str]:
    """By remedy, one line per arm with all that it gives; of what does not fit into `MOST` lines only the remedy."""
    groups: dict[str, dict[str, list[str]]] = {}
    for check in result.checks:
        for what, remedy in _missing(check, result):
            of_arm = groups.setdefault(remedy, {}).setdefault(check.arm, [])
            of_arm += [] if what in of_arm else [what]
    lines: list[str] = []
    for remedy, arms in groups.items():
        whole = [remedy, *(f"  {arm}: {', '.join(items)}" for arm, items in arms.items())]
        lines += whole if len(lines) + len(whole) <= MOST else [f"{remedy}; {len(arms)} arms, in audit show"]
    return lines


def _missing(check: StoredCheck, result: Results) -> Iterator[tuple[str, str]]:
    """Whatever keeps a check undecided, and what gives it without a change of the deployment."""
    short = check.details.get(SHORT_OF)
    if check.lacking:
        yield f"{check.check}: {shortened(check.summary, LONGEST)}", "not recorded, often given by record: full"
    elif check.verdict is not Verdict.INCONCLUSIVE:
        return
    elif short is None:
        # more of the same decides if the bound is above the margin, or the check counts what it lacks
        too_few = is_wide(check) or check.summary.startswith("fewer than")
        yield f"{check.check} ({reason_of(check)})", TOO_FEW if too_few else "not decided"
    elif not short:
        yield check.check, "nothing was accepted: add prompts whose answers the draft foresees"
    else:
        least = {item.situation: item.least for item in result.coverage if item.arm == check.arm}
        for name, count in short.items():
            yield f"{name} {count} of {least.get(name)}", f"too rare: {CATALOGUE[name].remedy}"


def arm_lines(arms: Sequence[StoredArm]) -> Iterator[str]:
    """The arms that are broken on purpose, and the requests that the run added to the suite's own."""
    broken = [f"{arm} ({fault})" for arm, fault in faults_of(arms).items()]
    added = [f"{arm.counts.directed} in {arm.name}" for arm in arms if arm.counts.directed]
    yield from [f"broken on purpose: {', '.join(broken)}"] if broken else []
    yield from [f"directed requests beside the suite's own: {', '.join(added)}"] if added else []
