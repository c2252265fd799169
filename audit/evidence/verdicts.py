"""A check's result: a verdict with its numbers and the places where the claim fails."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

LACKING: Final = "lacking"
"""Key of `CheckResult.details`, true where a check is `not_run` for want of evidence."""
SHORT_OF: Final = "short_of"
"""Key of `CheckResult.details`: examined occurrences of the situations below their floors."""
MAX_FINDINGS: Final = 20
"""Most findings of a result; its numbers count all."""
POOLED: Final = "all requests"
"""`Finding.request` of a finding about all of them together."""
WHOLE_ARM: Final = "the arm"
"""`Finding.request` of a finding about the arm as a whole."""


class Verdict(StrEnum):
    """The three verdicts, and `not_run`."""

    CERTIFIED = "certified"
    """An upper bound is within the margin, on this workload."""
    FAULT = "fault"
    """A lower bound exceeds the margin, or a zero-tolerance hit."""
    INCONCLUSIVE = "inconclusive"
    """The evidence shows neither; this is not a pass."""
    NOT_RUN = "not_run"
    """The check lacks its evidence or does not apply; the summary gives the reason."""


def worst(verdicts: Collection[Verdict]) -> Verdict:
    """The verdict on a whole by those on its parts: a fault before all, `not_run` only where nothing else is."""
    order = (Verdict.FAULT, Verdict.INCONCLUSIVE, Verdict.CERTIFIED)
    return next((verdict for verdict in order if verdict in verdicts), Verdict.NOT_RUN)


@dataclass(frozen=True, slots=True)
class Finding:
    """One concrete place where the claim fails. `step` counts from 0 within the request."""

    request: str
    step: int
    message: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check's result on one arm.

    `statistic`, `effect` and `bound` are in the units given on the check's page; None if undefined. `n` counts its
    sampling units.
    """

    verdict: Verdict
    summary: str
    n: int = 0
    statistic: float | None = None
    p_value: float | None = None
    effect: float | None = None
    bound: float | None = None
    margin: float | None = None
    detectable: float | None = None
    """The smallest effect that this evidence would have shown with probability 0.9, in the effect's unit."""
    findings: tuple[Finding, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """JSON-able numbers behind the summary."""

    @property
    def lacking(self) -> bool:
        """True if the check is `not_run` for want of evidence; False where its claim does not exist for the arm."""
        return bool(self.details.get(LACKING))


Params = Mapping[str, Any]


class NoEvidence(str):
    """Why a check lacks its evidence: it ends `not_run` and leaves its arm undecided.

    A plain text instead says why the claim does not exist for the arm, which leaves nothing to decide.
    """

    __slots__ = ()
