"""Answers to requests that offer tools, beside the baseline's answers to the same requests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from audit.evidence.divergence.coupled import INSTRUMENT as COUPLED
from audit.evidence.divergence.greedy import INSTRUMENT as GREEDY
from audit.evidence.divergence.triage import triage
from audit.evidence.pairing import MarginNoise, Pair, divergence, measure_noise
from audit.evidence.records import Evidence, RequestRecord, is_later_turn
from audit.evidence.tool_calls import (
    AnsweredOffer,
    answered,
    defect,
    difference,
    offers_tools,
    reread,
    stream_defect,
    unread_reason,
)
from engine.record.tool_calls import ParsedCalls

UNREAD = "the engine does not report the calls that it read"


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """An answer beside the baseline's.

    apart: how its calls differ from the baseline's; None if they are equal.
    kind: of such a difference, as `audit.evidence.divergence.triage.KINDS`; empty where the arms are independent.
    theirs: why the baseline's answer is not valid; None if it is.
    passed, baseline_passed: the answer is valid and has the calls that were asked for.
    """

    step: int
    apart: str | None
    kind: str
    theirs: str | None
    passed: bool
    baseline_passed: bool


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """One request of the candidate.

    calls: the number of its calls.
    again: its text was read a second time.
    misread: how the engine's calls differ from those in its own text, or in a stream of the same tokens as the
        baseline's do not; None if they agree, or nobody can tell.
    ours: why the answer is not valid; None if it is.
    pair: None without a partner in the baseline.
    later: it is a later turn, whose partner may have had another prompt.
    """

    request_id: str
    calls: int
    again: bool
    misread: str | None
    ours: str | None
    pair: JudgedPair | None
    later: bool


@dataclass(frozen=True, slots=True)
class JudgedArm:
    """The judged answers, and the reasons of those that nothing can be said about."""

    answers: tuple[JudgedAnswer, ...]
    silent: tuple[str, ...]

    @property
    def pairs(self) -> tuple[JudgedPair, ...]:
        """The answers with a partner."""
        return tuple(answer.pair for answer in self.answers if answer.pair is not None)

    @property
    def unpaired(self) -> int:
        """The answers that lack one."""
        return sum(answer.pair is None and not answer.later for answer in self.answers)

    @property
    def read_again(self) -> bool:
        """True if every answer's text was read a second time."""
        return bool(self.answers) and not self.silent and all(answer.again for answer in self.answers)


KindOf = Callable[[Pair], str]
"""The kind of a difference between two answers."""


def judge_answers(evidence: Evidence, *, exact: bool) -> JudgedArm:
    """Judge every answer to an offer; `exact` if the arms must agree token by token."""
    others = {} if evidence.baseline is None else evidence.baseline.by_key()
    kind_of = _triaged(evidence) if exact and others else lambda _pair: ""
    answers: list[JudgedAnswer] = []
    silent: list[str] = []
    for request in filter(offers_tools, evidence.candidate.requests):
        ours = answered(request)
        if ours is None:
            silent.append(unread_reason(request) or UNREAD)
        else:
            answers.append(_judged(request, ours, others.get(request.key), kind_of))
    return JudgedArm(tuple(answers), tuple(silent))


def _judged(request: RequestRecord, ours: AnsweredOffer, other: RequestRecord | None, kind_of: KindOf) -> JudgedAnswer:
    theirs = None if other is None else answered(other)
    own, problem = reread(request, ours), defect(request, ours)
    misread = None if own is None else _misread(ours, own)
    paired = None
    if other is not None and theirs is not None:
        # a server whose stream differs in both arms has a parser that is wrong without speculation too
        misread = misread or (stream_defect(ours) if stream_defect(theirs) is None else None)
        paired = _pair(Pair(request, other), ours, theirs, kind_of, valid=problem is None)
    later = is_later_turn(request.case_id)
    return JudgedAnswer(request.request_id, len(ours.parsed.calls), own is not None, misread, problem, paired, later)


def _pair(pair: Pair, ours: AnsweredOffer, theirs: AnsweredOffer, kind_of: KindOf, *, valid: bool) -> JudgedPair:
    apart, parted, problem = _apart(pair, ours, theirs), divergence(pair), defect(pair.baseline, theirs)
    return JudgedPair(
        step=0 if parted is None else parted.step,
        apart=apart,
        kind="" if apart is None else kind_of(pair),
        theirs=problem,
        passed=valid and _as_asked(ours),
        baseline_passed=problem is None and _as_asked(theirs),
    )


def _apart(pair: Pair, ours: AnsweredOffer, theirs: AnsweredOffer) -> str | None:
    text = difference(ours.parsed, theirs.parsed)
    ends = [answer.finish or str(request.finish_reason) for request, answer in _sides(pair, ours, theirs)]
    if text is not None or ends[0] == ends[1]:
        return text
    return f"it ended by {ends[0]}, not by {ends[1]}"


def _sides(pair: Pair, ours: AnsweredOffer, theirs: AnsweredOffer) -> Iterator[tuple[RequestRecord, AnsweredOffer]]:
    yield from ((pair.candidate, ours), (pair.baseline, theirs))


def _as_asked(answer: AnsweredOffer) -> bool:
    return bool(answer.parsed.calls) != (answer.offer.choice == "none")


def _misread(answer: AnsweredOffer, own: ParsedCalls) -> str | None:
    """A text that cannot be read to its end counts as such, whatever was read before."""
    if own.problem is not None and answer.parsed.problem is not None:
        return None
    text = difference(answer.parsed, own)
    why = "" if answer.parsed.problem is None else f" ({answer.parsed.problem})"
    return None if text is None else f"the engine's {text} as its text has it{why}"


def _triaged(evidence: Evidence) -> KindOf:
    """Kinds as the equality checks name them; the noise is measured at the first difference."""
    assert evidence.baseline is not None
    baseline, measured = evidence.baseline, list[MarginNoise]()

    def kind_of(pair: Pair) -> str:
        result = divergence(pair)
        if result is None:
            return "real"
        instrument = GREEDY if pair.baseline.trace.header.sampling.greedy else COUPLED
        if not measured:
            measured.append(measure_noise(baseline, evidence.controls, instrument.margins))
        return triage(result, measured[0], instrument, {}).kind

    return kind_of
