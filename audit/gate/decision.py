"""A gate's decision, its reasons and the next step after each, as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Final

from audit.attest.waivers import Unmet


class Decision(StrEnum):
    """A gate's decision; only `allow` lets a deployment pass."""

    ALLOW = "allow"
    BLOCK = "block"
    CANNOT_DECIDE = "cannot_decide"

    @property
    def exit_code(self) -> int:
        """0, 1 or 3."""
        return EXIT_CODES[self]

    @property
    def words(self) -> str:
        """The decision as readers see it."""
        return self.value.replace("_", " ")


CLOCK: Final = "clock"
"""Subject of a reason that doubts a moment; no waiver mends it."""
NEVER_WAIVED: Final = frozenset(
    "arms gate known_bad lossless policy record reviews run signed statements waivers verdicts".split()
)
"""Requirements that no waiver touches; nor does one touch a subject, or a check that found a fault."""
SUBJECT: Final = "subject "
"""Beginning of the requirements on subjects."""
EXIT_CODES: Final = {Decision.ALLOW: 0, Decision.BLOCK: 1, Decision.CANNOT_DECIDE: 3}


@dataclass(frozen=True, slots=True)
class Reason:
    """One unmet requirement. `answer` is the decision that follows from it alone.

    arm, check: the result that the reason is about, if it is about one. about: the parameter, situation or count, where
    a requirement has several. statement: id of the signed waiver or review that made a remark of it. until: when that
    ends; None if it does not.
    """

    answer: Decision
    requirement: str
    text: str
    arm: str | None = None
    check: str | None = None
    about: str | None = None
    statement: str | None = None
    until: datetime | None = None

    @property
    def name(self) -> Unmet:
        """The terms of a waiver of this reason and no other."""
        return Unmet(self.answer.value, self.requirement, self.arm, self.check, self.about)

    def __str__(self) -> str:
        return f"{self.answer}: {self.requirement}: {self.text}"


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """A decision with all its reasons; those of an `allow` are waivers and remarks, whose own answer is `allow`.

    `broken_off` if an unexpected error ended the decision; such an outcome never allows, not even as a warning.
    """

    answer: Decision
    reasons: tuple[Reason, ...]
    broken_off: bool = False


def never_waived(requirement: str) -> bool:
    """True for a requirement of which no policy may accept a waiver."""
    return requirement in NEVER_WAIVED or requirement.startswith(SUBJECT)


def outcome_of(reasons: tuple[Reason, ...]) -> GateOutcome:
    """The worst answer among the reasons: a block outweighs the rest."""
    answers = {reason.answer for reason in reasons}
    worst = next((answer for answer in (Decision.BLOCK, Decision.CANNOT_DECIDE) if answer in answers), Decision.ALLOW)
    return GateOutcome(worst, reasons)


undecided: Final = partial(Reason, Decision.CANNOT_DECIDE)
"""Makes the reason for a requirement that the evidence does not show."""
blocked: Final = partial(Reason, Decision.BLOCK)
"""Makes the reason for a requirement that the evidence contradicts."""
remark: Final = partial(Reason, Decision.ALLOW)
"""Makes the reason for a fact that a reader of the decision must know and that changes no answer."""
STEPS: Final[Mapping[str, str]] = {
    "record": "audit db check {run} names every place; run the suite again, or restore the store from a copy",
    "run": "audit list shows the runs; audit resume {run} goes on with an interrupted one",
    "max_age": "run the suite again: audit run SUITE",
    "verdicts": "decide without --trust-verdicts, or use a policy with evidence.stored_verdicts: true",
    "min_tokens": "raise samples, max_new_tokens or the workloads' limits in the suite, and run it again",
    "newest": "find out why that run ended so, run the suite again, and gate the run that passes",
    "attempts": "find out why the runs before did not pass; a policy bounds them by evidence.attempts",
    "suites": "run a suite that the policy lists, or have this one approved: add its digest to evidence.suites",
    "arms": "run the whole suite again: audit run SUITE",
    "signed": "sign the log: audit db checkpoint --key KEY --out NOTE, and give --checkpoint NOTE",
    "statements": "audit db checkpoint --key KEY --out NOTE in the run's own store, with a key of keys.trusted; then "
    "export again, and gate the bundle, or audit import it with --key KEY.pub",
    "policy": "give the policy whose digest the deployment expects",
    "known_bad": "remove the fault from the suite",
    "lossless": "deploy a lossless rule, or use a policy without require_lossless",
    "speculation": "audit show {run} has the counts; let the arm draft, and let the target accept",
    "workload": "enlarge the suite's workloads and run it again",
    "deployed": "run the suite as the deployment runs: batch_size, gamma, proposer, numerics, machine",
    "floors": "audit show {run} has the counts; audit sweep SUITE finds the fastest draft length",
    "require": "add a requirement to the policy that selects the arm",
    "accounts": "list a check that judges the quantity, or waive it in the suite: checks: {{second_accounts: ...}}",
    "coverage": "audit coverage {run} shows the situations; the page of each says how a suite meets it",
    "one_identity": "list the check identity in the suite; audit show {run} names who answered",
    "own_coverage": "add prompts that meet the floors, write coverage: {{directed: off}}, and run the suite again",
    "parameters": "set the parameter in the suite to what the policy accepts, and run it again",
    "reviews": "ask for a review: audit review {run} --outcome approve --role ROLE --comment TEXT --key KEY",
    "gate": "report this with the output of: audit doctor",
}
"""By requirement; `{run}` stands for the run."""
WATCH: Final[Mapping[Decision, str]] = {
    Decision.BLOCK: "audit watch URL --show has the days; find the cause, or sign a waiver with audit waive {run}",
    Decision.CANNOT_DECIDE: "watch the server: audit watch URL --run {run}, or with --once from cron",
}
"""By answer, for the requirement `watched`."""


def next_step(reason: Reason, run: str) -> str | None:
    """The step after a reason; None for a remark."""
    if reason.answer is Decision.ALLOW:
        return None
    step = STEPS.get(reason.requirement)
    if step is None:
        step = _of_kind(reason)
    return step.format(run=run)


def _of_kind(reason: Reason) -> str:
    if reason.requirement.startswith("subject "):
        return "deploy the files that were audited, or audit those that will be deployed"
    if reason.requirement.partition(" ")[0] == "rego":
        return "audit schema gate-facts describes the module's input; a policy lists modules by digest under rego"
    if reason.requirement.startswith("serves "):
        return "add such an arm to the suite, or name what the deployment serves of the policy's list: --serves"
    if reason.requirement == "watched":
        return WATCH[reason.answer]
    if reason.answer is Decision.BLOCK:
        return "audit show {run} has the findings, audit minimize {run} finds a small reproducer"
    return "add the check to the suite's arm and run it again; audit show {run} says why one did not run"
