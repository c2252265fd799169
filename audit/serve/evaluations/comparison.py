"""Two evaluations of the same samples, without speculation and with it: scores, answers, and the decision.

Answers are compared from the records alone, by the checks of equivalence. Requests are paired by what was asked
(prompt, sampling parameters with the seed, stream), not by samples, so the pairs are those of a harness that asks in
any order. A request that only one evaluation asked, such as the second turn after another first answer, has no partner;
checks of equality say so.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from audit.checks import load
from audit.errors import CannotDecide
from audit.evidence.coverage.rule import CoverageRule
from audit.evidence.records import ArmRecord, Evidence, LazyRequests, RequestRecord
from audit.evidence.verdicts import CheckResult, Verdict
from audit.runs.judge import arm_exit_code, judge_arm
from audit.serve.evaluations.score_pairs import (
    CONFIDENCE,
    EvaluatedArm,
    ScoreDifference,
    ScoredRun,
    score_differences,
    unseen_changes,
)
from audit.stats.binomial import upper_bound
from audit.store import Store
from audit.suite.spec import ArmChecks
from engine.core.types import Protocol, RecordLevel

ACCOUNTING: Final = "accounting"
REPLAY: Final = "replay"
"""From whole rows only."""
GREEDY: Final = "greedy_equality"
COUPLED: Final = "coupled_equality"
OTHERWISE: Final = "law"


@dataclass(frozen=True, slots=True)
class JudgedAnswers:
    """One check over the greedy or the sampled answers."""

    answers: str
    check: str
    result: CheckResult


@dataclass(frozen=True, slots=True)
class PairedAnswers:
    """The answers of both evaluations.

    changed: requests of the evaluation with speculation whose tokens differ from their partner's.
    upper: bound on the share of answers that speculation changes, by Clopper and Pearson, with 99 % confidence.
    """

    pairs: int
    changed: tuple[str, ...]
    unpaired: int
    upper: float
    judged: tuple[JudgedAnswers, ...]

    @property
    def verdicts(self) -> set[Verdict]:
        """Verdicts of all checks."""
        return {judged.result.verdict for judged in self.judged}


def paired_answers(store: Store, off: EvaluatedArm, on: EvaluatedArm) -> PairedAnswers:
    """Pair and judge the answers of two runs.

    Raises:
        CannotDecide: no answer was generated.
    """
    plain, drafted = (_keyed(store.load_arm(item.run, item.arm)) for item in (off, on))
    if not len(drafted.requests):
        raise CannotDecide("the evaluation generated no answers to compare")
    partners = {request.case_id: request.tokens for request in plain.requests}
    paired = [request for request in drafted.requests if request.case_id in partners]
    changed = tuple(item.request_id for item in paired if item.tokens != partners[item.case_id])
    unpaired = len(drafted.requests) + len(plain.requests) - 2 * len(paired)
    upper = upper_bound(len(changed), len(paired), 0.99) if paired else 1.0
    return PairedAnswers(len(paired), changed, unpaired, upper, tuple(_judged(plain, drafted)))


def _judged(plain: ArmRecord, drafted: ArmRecord) -> Iterator[JudgedAnswers]:
    """The checks over greedy and over sampled answers: a check is about answers of one kind."""
    for answers, greedy in (("greedy", True), ("sampled", False)):
        evidence = Evidence(candidate=_part(drafted, greedy), baseline=_part(plain, greedy))
        if not len(evidence.candidate.requests):
            continue
        # an evaluation's prompts are not chosen to meet rare situations
        checks = ArmChecks({name: load(name).defaults for name in _checks(evidence, greedy)}, CoverageRule(least=0))
        for name, result in judge_arm(evidence, checks).results.items():
            yield JudgedAnswers(answers, name, result)


def _checks(evidence: Evidence, greedy: bool) -> tuple[str, ...]:
    header = evidence.candidate.requests[0].trace.header
    own = GREEDY if greedy else COUPLED if header.protocol is Protocol.GUMBEL else OTHERWISE
    return (ACCOUNTING, own, REPLAY) if header.level is RecordLevel.FULL else (ACCOUNTING, own)


def _part(arm: ArmRecord, greedy: bool) -> ArmRecord:
    requests = arm.requests
    places = [at for at, item in enumerate(requests) if item.trace.header.sampling.greedy is greedy]
    return replace(arm, requests=LazyRequests(len(places), lambda at: requests[places[at]]))


def _keyed(arm: ArmRecord) -> ArmRecord:
    """The arm with requests named by what they asked, in the order of these names."""
    seen: Counter[str] = Counter()
    names = []
    for request in arm.requests:
        asked = _asked(request)
        names.append(f"{asked}-{seen[asked]}")
        seen[asked] += 1
    order = sorted(range(len(names)), key=names.__getitem__)
    requests = arm.requests

    def read(at: int) -> RequestRecord:
        return replace(requests[order[at]], case_id=names[order[at]], sample=0)

    return replace(arm, requests=LazyRequests(len(order), read))


def _asked(request: RequestRecord) -> str:
    header = request.trace.header
    asked: Mapping[str, Any] = {
        "prompt": list(header.prompt),
        "sampling": header.sampling.document(),
        "stream": header.stream,
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:20]


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
        names = ("exit_code", "off", "on", "confidence", "scores", "answers", "unseen", "control")
        return {name: getattr(self, name) for name in names}


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
