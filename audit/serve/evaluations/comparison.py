"""Two evaluations of the same samples, without speculation and with it: scores, answers, and the decision.

Answers are compared from the records alone, by the checks of equivalence. Requests are paired by what was asked
(prompt, sampling parameters with the seed, stream), not by samples, so the pairs are those of a harness that asks in
any order. A request that only one evaluation asked, such as the second turn after another first answer, has no partner;
checks of equality say so.

The interval of a score is a betting interval of the mean of paired differences (Waudby-Smith and Ramdas 2024, as in
`audit.stats.bounded_mean`), exact at any number of samples and for any distribution on [-1, 1]. Repetitions of a sample
are averaged first, so samples are what is independent. All intervals hold together with the stated confidence: each one
gets its share of the error (Bonferroni). Only scores within [0, 1] have one.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np

from audit.checks import load
from audit.errors import CannotDecide
from audit.evidence.coverage.rule import CoverageRule
from audit.evidence.records import ArmRecord, Evidence, LazyRequests, RequestRecord
from audit.evidence.verdicts import CheckResult, Verdict
from audit.runs.judge import arm_exit_code, judge_arm
from audit.stats.binomial import Interval, upper_bound
from audit.stats.bounded_mean import betting_interval
from audit.store import Store
from audit.suite.spec import ArmChecks
from engine.core.types import Floats, Protocol, RecordLevel

ACCOUNTING: Final = "accounting"
REPLAY: Final = "replay"
"""From whole rows only."""
GREEDY: Final = "greedy_equality"
COUPLED: Final = "coupled_equality"
CONFIDENCE: Final = 0.99


class EvaluationPass(StrEnum):
    """One evaluation of those that are compared; its name is that of its folder of results."""

    OFF = "off"
    CONTROL = "control"
    """As `off`, with other seeds."""
    ON = "on"

    @property
    def speculation(self) -> str:
        """The models' option `speculation`."""
        return "on" if self is EvaluationPass.ON else "off"

    def seed(self, seed: int) -> int:
        """The evaluation's seed, from the user's."""
        return seed + 1 if self is EvaluationPass.CONTROL else seed


@dataclass(frozen=True, slots=True)
class ScoredSample:
    """One sample of an evaluation, or one repetition of it: its scores by metric, and the records of its requests."""

    task: str
    sample: str
    scores: Mapping[str, float]
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvaluatedArm:
    """The run of an evaluation, and the arm of its generated answers."""

    run: str
    arm: str


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """One evaluation: the run of its answers, and its samples."""

    arm: EvaluatedArm
    samples: tuple[ScoredSample, ...]


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """A metric of a task; `difference` is on minus off, `interval` None for scores that do not lie in [0, 1]."""

    task: str
    metric: str
    samples: int
    off: float
    on: float
    difference: float
    interval: Interval | None

    @property
    def differs(self) -> bool:
        """True if the interval excludes 0."""
        return self.interval is not None and not self.interval.low <= 0.0 <= self.interval.high


def score_differences(
    off: Sequence[ScoredSample], on: Sequence[ScoredSample], confidence: float = CONFIDENCE
) -> tuple[ScoreDifference, ...]:
    """The difference of every metric, over the samples that both evaluations scored."""
    before, after = _means(off), _means(on)
    metrics = [metric for metric in before if metric in after]
    error = (1.0 - confidence) / max(1, len(metrics))
    return tuple(_difference(metric, before[metric], after[metric], 1.0 - error) for metric in metrics)


def _means(samples: Sequence[ScoredSample]) -> dict[tuple[str, str], dict[str, float]]:
    """The mean of every sample's repetitions, by task and metric, and by sample."""
    mapping: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        for name, score in sample.scores.items():
            mapping[sample.task, name][sample.sample].append(score)
    return {
        metric: {sample: float(np.mean(scores)) for sample, scores in mapping[metric].items()}
        for metric in sorted(mapping)
    }


def _difference(
    metric: tuple[str, str], off: Mapping[str, float], on: Mapping[str, float], confidence: float
) -> ScoreDifference:
    samples = [sample for sample in off if sample in on]
    before, after = (np.array([scores[sample] for sample in samples]) for scores in (off, on))
    moved = after - before
    interval = _interval(moved, confidence) if _bounded(before) and _bounded(after) else None
    return ScoreDifference(*metric, len(samples), _mean(before), _mean(after), _mean(moved), interval)


def _mean(scores: Floats) -> float:
    return float(scores.mean()) if len(scores) else 0.0


def _bounded(scores: Floats) -> bool:
    return len(scores) == 0 or (float(scores.min()) >= 0.0 and float(scores.max()) <= 1.0)


def _interval(moved: Floats, confidence: float) -> Interval:
    unit = betting_interval((1.0 + moved) / 2.0, confidence)
    return Interval(2.0 * unit.low - 1.0, 2.0 * unit.high - 1.0)


def unseen_changes(off: Sequence[ScoredSample], on: Sequence[ScoredSample], changed: Sequence[str]) -> int:
    """How many samples have an answer among `changed` and the same scores in both evaluations."""
    before, names = _means(off), {name.partition("#")[0] for name in changed}
    touched = {(item.task, item.sample) for item in on if names.intersection(item.requests)}
    moved = {
        (task, sample)
        for (task, name), scores in _means(on).items()
        for sample, score in scores.items()
        if before.get((task, name), {}).get(sample) != score
    }
    return len(touched - moved)


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
    """Pair and judge the answers of two runs. Raises CannotDecide: no answer was generated."""
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
    own = GREEDY if greedy else COUPLED if header.protocol is Protocol.GUMBEL else "law"
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
