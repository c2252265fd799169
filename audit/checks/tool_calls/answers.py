"""Answers to requests that offer tools, beside the baseline's answers to the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from audit.evidence.divergence.coupled import INSTRUMENT as COUPLED
from audit.evidence.divergence.greedy import INSTRUMENT as GREEDY
from audit.evidence.divergence.triage import Instrument, triage
from audit.evidence.pairing import MarginNoise, Pair, divergence, measure_noise
from audit.evidence.records import Evidence, RequestRecord
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
class JudgedAnswer:
    """One request of the candidate.

    calls: the number of its calls.
    misread: how the engine's calls differ from those in its own text, or in a stream of the same tokens as the
        baseline's do not; None if they agree, or nobody can tell.
    apart: how its calls differ from the baseline's; None if they are equal.
    kind: of such a difference, as `audit.evidence.divergence.triage.KINDS`; empty where the arms are independent.
    ours, theirs: why the candidate's and the baseline's answer is not valid; None if it is.
    passed, baseline_passed: the answer is valid and has the calls that were asked for.
    """

    request_id: str
    step: int
    calls: int
    misread: str | None
    apart: str | None
    kind: str
    ours: str | None
    theirs: str | None
    passed: bool
    baseline_passed: bool


@dataclass(frozen=True, slots=True)
class JudgedArm:
    """The judged answers, the reasons of those that nothing can be said about, and the requests of one arm only."""

    answers: tuple[JudgedAnswer, ...]
    silent: tuple[str, ...]
    unpaired: int


KindOf = Callable[[Pair], str]
"""The kind of a difference between two answers."""


def judge_answers(evidence: Evidence, *, exact: bool) -> JudgedArm:
    """Judge every answer to an offer; `exact` if the arms must agree token by token."""
    assert evidence.baseline is not None
    others = evidence.baseline.by_key()
    kind_of = _triaged(evidence) if exact else lambda _pair: ""
    answers, silent, unpaired = [], [], 0
    for request in filter(offers_tools, evidence.candidate.requests):
        other = others.get(request.key)
        ours = answered(request)
        theirs = None if other is None else answered(other)
        if ours is None:
            silent.append(unread_reason(request) or UNREAD)
        elif other is None or theirs is None:
            unpaired += 1
        else:
            answers.append(_judged(Pair(request, other), ours, theirs, kind_of))
    return JudgedArm(tuple(answers), tuple(silent), unpaired)


def _judged(pair: Pair, ours: AnsweredOffer, theirs: AnsweredOffer, kind_of: KindOf) -> JudgedAnswer:
    apart = _apart(pair, ours, theirs)
    defects = [defect(request, answer) for request, answer in ((pair.candidate, ours), (pair.baseline, theirs))]
    passed = [problem is None and _as_asked(answer) for problem, answer in zip(defects, (ours, theirs), strict=True)]
    parted = divergence(pair)
    return JudgedAnswer(
        request_id=pair.candidate.request_id,
        step=0 if parted is None else parted.step,
        calls=len(ours.parsed.calls),
        misread=_misread(pair.candidate, ours) or _misstreamed(ours, theirs),
        apart=apart,
        kind="" if apart is None else kind_of(pair),
        ours=defects[0],
        theirs=defects[1],
        passed=passed[0],
        baseline_passed=passed[1],
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


def _misread(request: RequestRecord, answer: AnsweredOffer) -> str | None:
    """A text that cannot be read to its end counts as such, whatever was read before."""
    own = reread(request, answer)
    if own is None or (own.problem is not None and answer.parsed.problem is not None):
        return None
    text = difference(answer.parsed, own)
    return None if text is None else f"the engine's {text} as its text has it{_why(answer.parsed)}"


def _misstreamed(ours: AnsweredOffer, theirs: AnsweredOffer) -> str | None:
    """A server whose stream differs in both arms has a parser that is wrong without speculation too."""
    return stream_defect(ours) if stream_defect(theirs) is None else None


def _why(parsed: ParsedCalls) -> str:
    return "" if parsed.problem is None else f" ({parsed.problem})"


def _triaged(evidence: Evidence) -> KindOf:
    """Kinds as the equality checks name them; the noise is measured at the first difference."""
    assert evidence.baseline is not None
    baseline, measured = evidence.baseline, list[MarginNoise]()

    def kind_of(pair: Pair) -> str:
        result = divergence(pair)
        if result is None:
            return "real"
        instrument = _instrument(pair.baseline)
        if not measured:
            measured.append(measure_noise(baseline, evidence.controls, instrument.margins))
        return triage(result, measured[0], instrument, {}).kind

    return kind_of


def _instrument(request: RequestRecord) -> Instrument:
    return GREEDY if request.trace.header.sampling.greedy else COUPLED
