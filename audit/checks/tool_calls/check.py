"""Tool-call equality: speculation changes no tool call, and the engine reads out of its text what stands in it.

Claim: tools. Null: the candidate calls what the target alone would have called.
Where both arms must agree token by token (temperature 0, or the gumbel rule with
shared random numbers) the statistic is the number of answers whose calls differ
in name, arguments, number, order or end by more than the noise of the engine;
one is a fault, and the bound is the Clopper-Pearson upper bound on their share.
Under rules that sample, answers are pairs of independent draws: an answer passes
if it calls and every call is valid, McNemar's exact test compares the arms, and
both of Tango's bounds on the difference must lie within the margin. In every arm
the calls that the engine reports are compared with those in its text, read at
once; one difference is a fault. An answer that is wrong in both arms tells about
the model and its template, not about speculation; the summary counts them.
Cannot see: calls that are wrong in the same way in both arms, the text between
calls, and what a server's parser did to a text that the record does not hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from audit.checks.base.interface import Check, Design
from audit.checks.tool_calls.answers import JudgedAnswer, JudgedArm, judge_answers
from audit.evidence.coverage.groups import Examined, Group
from audit.evidence.coverage.view import Mask
from audit.evidence.records import Evidence, Level, RequestRecord
from audit.evidence.tool_calls import answered, offers_tools, spans_of, unread_reason
from audit.evidence.verdicts import CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.paired import PairCounts, mcnemar, tango_lower, tango_upper
from audit.stats.power import POWER, non_inferiority_need, replay_effect
from audit.stats.sample_size import SampleSize
from engine.backends.evidence import Part
from engine.core.types import Protocol

NO_TOOLS = "no request offers tools"
NO_CALLS = "the backend does not report the tool calls that it reads"
NOT_SHARED = "the arms do not share their random numbers"
MAX_FINDINGS = 20
DISCORDANT = 0.05
"""Share of pairs of which one passes, for a plan. The bundled pair gives 0.02 at temperature 1."""
ANSWERS = "answers"


def _applies(evidence: Evidence) -> str | None:
    offers = [request for request in evidence.candidate.requests if offers_tools(request)]
    if not offers:
        return NO_TOOLS
    if evidence.baseline is None:
        return NoEvidence("there is no baseline arm to compare with")
    if all(answered(request) is None for request in offers):
        return NoEvidence(unread_reason(offers[0]) or NO_CALLS)
    return None


def _foresee(params: Params, design: Design) -> str | None:
    del params
    if not design.offers:
        return NO_TOOLS
    return None if design.shown.gives(Part.CALLS) else NoEvidence(NO_CALLS)


def _exact(request: RequestRecord) -> bool:
    """True if the arms must agree token by token."""
    return request.trace.header.sampling.greedy or request.trace.header.protocol is Protocol.GUMBEL


def _shared(evidence: Evidence) -> bool:
    assert evidence.baseline is not None
    others = evidence.baseline.by_key()
    headers = [
        (request.trace.header, others[request.key].trace.header)
        for request in evidence.candidate.requests
        if request.key in others
    ]
    return all((ours.stream, ours.sampling) == (theirs.stream, theirs.sampling) for ours, theirs in headers)


def _run(evidence: Evidence, params: Params) -> CheckResult:
    exact = all(map(_exact, evidence.candidate.requests))
    if exact and not _shared(evidence):
        return CheckResult(Verdict.INCONCLUSIVE, NOT_SHARED)
    judged = judge_answers(evidence, exact=exact)
    decision = _equal(judged, params) if exact else _paired(judged, params)
    return _with_reading(decision, judged)


def _equal(judged: JudgedArm, params: Params) -> CheckResult:
    """Arms that must agree."""
    n = len(judged.answers)
    kinds = [answer.kind for answer in judged.answers if answer.apart is not None]
    real, numerical = kinds.count("real"), kinds.count("numerical")
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    if real:
        verdict, words = Verdict.FAULT, f"{real} of {n} answers call something else than the baseline"
    elif reason := _open(judged, params):
        verdict, words = Verdict.INCONCLUSIVE, reason
    elif len(kinds) > numerical:
        verdict, words = Verdict.INCONCLUSIVE, f"{len(kinds) - numerical} of {n} answers differ and cannot be triaged"
    elif numerical > float(params["max_numerical"]) * n:
        verdict, words = (
            Verdict.INCONCLUSIVE,
            f"{numerical} of {n} answers differ at near-ties within the engine's noise",
        )
    else:
        near = f", {numerical} differ at near-ties" if numerical else ""
        words = f"the calls of {n} answers are the baseline's{near}"
        verdict, words = Verdict.CERTIFIED, f"{words}, at most {upper_bound(real, n):.2g} are not"
    return CheckResult(
        verdict=verdict,
        summary=words,
        n=n,
        statistic=float(real),
        effect=real / n if n else None,
        bound=upper_bound(real, n, float(params["confidence"])) if n else None,
        detectable=replay_effect(n) if n else None,
        details={"differences": counts},
    )


def _paired(judged: JudgedArm, params: Params) -> CheckResult:
    """Arms that are independent draws of one law."""
    n = len(judged.answers)
    if not n:
        return CheckResult(Verdict.INCONCLUSIVE, _open(judged, params))
    worse = sum(answer.baseline_passed and not answer.passed for answer in judged.answers)
    better = sum(answer.passed and not answer.baseline_passed for answer in judged.answers)
    pairs, margin, confidence = PairCounts(n, worse, better), float(params["margin"]), float(params["confidence"])
    test = mcnemar(pairs)
    low, high = tango_lower(pairs, confidence), tango_upper(pairs, confidence)
    bound, loss = max(-low, high), (worse - better) / n
    words = f"{worse} answers pass in the baseline only and {better} in the candidate only, of {n} pairs"
    if test.p < float(params["alpha"]):
        verdict = Verdict.FAULT
    elif reason := _open(judged, params):
        verdict, words = Verdict.INCONCLUSIVE, f"{reason}; {words}"
    else:
        verdict = Verdict.CERTIFIED if bound <= margin else Verdict.INCONCLUSIVE
    return CheckResult(
        verdict=verdict,
        summary=f"{words}; the share that passes differs by at most {bound:.2g}",
        n=n,
        statistic=float(worse + better),
        p_value=test.p,
        effect=loss,
        bound=bound,
        margin=margin,
        details={"worse": worse, "better": better},
    )


def _open(judged: JudgedArm, params: Params) -> str:
    """Why no arm can be certified on these answers; empty if one can."""
    n = len(judged.answers)
    if judged.silent:
        return f"the calls of {len(judged.silent)} answers are not known ({judged.silent[0]})"
    if judged.unpaired:
        return f"{judged.unpaired} answers have no partner in the baseline"
    return f"{n} answers, fewer than {params['min_answers']}" if n < int(params["min_answers"]) else ""


def _with_reading(result: CheckResult, judged: JudgedArm) -> CheckResult:
    """The result with what every arm shows: the engine's reading, and answers that are wrong in both arms."""
    answers = judged.answers
    misread = [answer for answer in answers if answer.misread is not None]
    both = [answer for answer in answers if answer.ours is not None and answer.theirs is not None]
    verdict, words = result.verdict, result.summary
    if misread:
        verdict, words = Verdict.FAULT, f"{len(misread)} answers hold other calls than the engine reports; {words}"
    if both:
        words += f"; wrong in both arms: {len(both)}, which is about the model and not about speculation"
    counts = {
        "calls": sum(answer.calls for answer in answers),
        "with_calls": sum(answer.calls > 0 for answer in answers),
        "misread": len(misread),
        "wrong": sum(answer.ours is not None for answer in answers),
        "wrong_in_both": len(both),
        "unread": len(judged.silent),
    }
    return dataclasses.replace(
        result,
        verdict=verdict,
        summary=words,
        findings=tuple(finding.finding for finding in sorted(_findings(answers), key=lambda item: item.rank))[
            :MAX_FINDINGS
        ],
        details={**result.details, **counts},
    )


@dataclass(frozen=True, slots=True)
class _RankedFinding:
    """A finding and its place among others: the engine's reading first, the model's own mistakes last."""

    rank: int
    finding: Finding


def _findings(answers: Sequence[JudgedAnswer]) -> list[_RankedFinding]:
    result = []
    for answer in answers:
        messages = {
            0: answer.misread,
            1: None if answer.apart is None or not answer.kind else f"{answer.kind}: {answer.apart} as in the baseline",
            2: None if answer.ours is None or answer.theirs is not None else f"the candidate's answer: {answer.ours}",
            3: None if answer.theirs is None or answer.ours is not None else f"the baseline's answer: {answer.theirs}",
            4: None if answer.ours is None or answer.theirs is None else f"in both arms: {answer.ours}",
        }
        result += [
            _RankedFinding(rank, Finding(answer.request_id, answer.step, message))
            for rank, message in messages.items()
            if message is not None
        ]
    return result


def _plan(params: Params, design: Design) -> SampleSize | None:
    least = int(params["min_answers"])
    if design.greedy or design.shown.protocol is Protocol.GUMBEL:
        return SampleSize(least, ANSWERS, replay_effect(least), 0.0, POWER) if least else None
    alpha = 1.0 - float(params["confidence"])
    # both bounds must lie within the margin: the estimate may err to either side
    need = non_inferiority_need(DISCORDANT, float(params["margin"]), alpha=alpha, power=(1.0 + POWER) / 2.0)
    return dataclasses.replace(need, units=max(need.units, least), unit=ANSWERS, power=POWER)


def _examined(evidence: Evidence) -> Examined:
    """The tokens of the calls in answers that the baseline has too."""
    keys = frozenset() if evidence.baseline is None else frozenset(evidence.baseline.by_key())

    def mask(request: RequestRecord) -> Mask:
        inside = np.zeros(len(request.tokens), np.bool_)
        for span in spans_of(request) if request.key in keys else ():
            inside[span.start : span.stop] = True
        return inside

    return mask


CHECK = Check(
    name="tool_call_equality",
    claim="tools",
    needs=Level.L0,
    defaults={"margin": 0.05, "alpha": 0.001, "confidence": 0.99, "min_answers": 1, "max_numerical": 0.01},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="the candidate calls what the target alone would have called, and its text holds the calls that it reports",
    effect="share of answers whose calls differ, or difference of the shares that pass",
    plan=_plan,
    covers=frozenset({Group.EVENTS}),
    examines=_examined,
)
