"""A gate's decision and its reasons, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
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
    "arms gate known_bad lossless policy record reviews run signed waivers verdicts".split()
)
"""Requirements that no waiver touches; nor does one touch a subject, or a check that found a fault."""
SUBJECT: Final = "subject "
"""Beginning of the requirements on subjects."""
EXIT_CODES: Final = {Decision.ALLOW: 0, Decision.BLOCK: 1, Decision.CANNOT_DECIDE: 3}


@dataclass(frozen=True, slots=True)
class Reason:
    """One unmet requirement. `answer` is the decision that follows from it alone.

    arm, check: the result that the reason is about, if it is about one.
    about: the parameter, situation or count, where a requirement has several.
    statement: id of the signed waiver or review that made a remark of it.
    until: when that ends; None if it does not.
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


def undecided(
    requirement: str, text: str, arm: str | None = None, check: str | None = None, about: str | None = None
) -> Reason:
    """A requirement that the evidence does not show."""
    return Reason(Decision.CANNOT_DECIDE, requirement, text, arm, check, about)


def blocked(
    requirement: str, text: str, arm: str | None = None, check: str | None = None, about: str | None = None
) -> Reason:
    """A requirement that the evidence contradicts."""
    return Reason(Decision.BLOCK, requirement, text, arm, check, about)


def remark(requirement: str, text: str) -> Reason:
    """A fact that a reader of the decision must know and that changes no answer."""
    return Reason(Decision.ALLOW, requirement, text)
