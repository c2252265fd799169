"""Two evaluations of the same samples, without speculation and with it: scores, answers, and the decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from audit.runs.judge import arm_exit_code
from audit.serve.evaluations.arm_pairs import PairedAnswers, paired_answers
from audit.serve.evaluations.score_pairs import (
    CONFIDENCE,
    EvaluatedArm,
    ScoreDifference,
    ScoredRun,
    score_differences,
    unseen_changes,
)
from audit.store import Store

WORDS = {
    0: "PASS: no score differs, and every check that applies is certified",
    1: "FAIL: a score differs, or a check found a fault",
    3: "UNDECIDED: a check has too little evidence; that is not a pass",
}


@dataclass(frozen=True, slots=True)
class ControlScores:
    """A second evaluation without speculation, and the differences of its scores from the first one's."""

    arm: EvaluatedArm
    scores: tuple[ScoreDifference, ...]


@dataclass(frozen=True, slots=True)
class EvaluationComparison:
    """Comparison of two evaluations.

    control: what two evaluations without speculation show; None without such a control. It changes no decision.
    unseen: samples with another answer and the same scores.
    confidence: of all intervals of scores together.
    """

    off: EvaluatedArm
    on: EvaluatedArm
    scores: tuple[ScoreDifference, ...]
    answers: PairedAnswers
    unseen: int
    confidence: float
    control: ControlScores | None = None

    @property
    def exit_code(self) -> int:
        """1 if a score differs or a check found a fault, 0 if every check that applies is certified, else 3."""
        if any(score.differs for score in self.scores):
            return 1
        return arm_exit_code([judged.result for judged in self.answers.judged])

    @property
    def words(self) -> str:
        """The decision in words."""
        return WORDS[self.exit_code]

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "exit_code": self.exit_code,
            "off": self.off,
            "on": self.on,
            "confidence": self.confidence,
            "scores": self.scores,
            "answers": self.answers,
            "unseen": self.unseen,
            "control": self.control,
        }


def compared(store: Store, off: ScoredRun, on: ScoredRun, control: ScoredRun | None = None) -> EvaluationComparison:
    """Compare two evaluations whose runs are in the store, and a control with the first one.

    Raises:
        CannotDecide: no answer was generated.
    """
    answers = paired_answers(store, off.arm, on.arm)
    scores = score_differences(off.samples, on.samples)
    unseen = unseen_changes(off.samples, on.samples, answers.changed)
    twice = None if control is None else ControlScores(control.arm, score_differences(off.samples, control.samples))
    return EvaluationComparison(off.arm, on.arm, scores, answers, unseen, CONFIDENCE, twice)
