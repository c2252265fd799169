"""Tool-call equality: speculation changes no tool call, and the engine reads out of its text what stands in it.

Claim: tools. Null: the candidate calls what the target alone would have called. In every arm the calls that the engine
reports are compared with those in its text, read once more and whole; one difference is a fault, and the bound is the
Clopper-Pearson upper bound on the share of answers that differ. The baseline is compared on top of it. Where both arms
must agree token by token (temperature 0, or the gumbel rule with shared random numbers) the statistic is the number of
answers whose calls differ in name, arguments, number, order or end by more than the noise of the engine; one is a
fault. Under rules that sample, answers are pairs of independent draws: an answer passes if it calls and every call is
valid, and McNemar's exact test compares the arms. With `within_margin`, and where the text cannot be read again, both
of Tango's bounds on the difference must lie within the margin; elsewhere the calls follow from the text, whose law
other checks judge. An answer that is wrong in both arms tells about the model and its template, not about speculation;
the summary counts them. Cannot see: calls that are wrong in the same way in both readings or arms, the text between
calls, and what a server's parser did to a text that the record does not hold.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from audit.checks.base.interface import Check, Design
from audit.checks.base.wrong_units import counted
from audit.checks.tool_calls.answers import JudgedAnswer, JudgedArm, judge_answers
from audit.evidence.coverage.groups import Examined, Group
from audit.evidence.coverage.view import Mask
from audit.evidence.records import Evidence, RequestRecord
from audit.evidence.tool_calls import answered, can_reread, offers_tools, spans_of, unread_reason
from audit.evidence.verdicts import MAX_FINDINGS, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.paired import PairCounts, mcnemar, tango_lower, tango_upper
from audit.stats.power import POWER, non_inferiority_need, replay_effect
from audit.stats.sample_size import SampleSize
from engine.backends.evidence import Part

NO_TOOLS = "no request offers tools"
NO_CALLS = "the backend does not report the tool calls that it reads"
NOT_SHARED = "the arms do not share their random numbers"
DISCORDANT = 0.05
"""Share of pairs of which one passes, for a plan. The bundled pair gives 0.02 at temperature 1."""
ANSWERS = "answers"


def _applies(evidence: Evidence) -> str | None:
    offers = [request for request in evidence.candidate.requests if offers_tools(request)]
    if not offers:
        return NO_TOOLS
    answers = [answer for answer in map(answered, offers) if answer is not None]
    if not answers:
        return NoEvidence(unread_reason(offers[0]) or NO_CALLS)
    if evidence.baseline is None and not any(map(can_reread, answers)):
        return NoEvidence("there is no baseline arm to compare with")
    return None


def _foresee(_params: Params, design: Design) -> str | None:
    if not design.offers:
        return NO_TOOLS
    return None if design.shown.gives(Part.CALLS) else NoEvidence(NO_CALLS)


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
    # then the arms must agree token by token
    exact = all(request.trace.header.repeats for request in evidence.candidate.requests)
    if exact and evidence.baseline is not None and not _shared(evidence):
        alone = judge_answers(dataclasses.replace(evidence, baseline=None), exact=False)
        return _with_reading(CheckResult(Verdict.INCONCLUSIVE, NOT_SHARED), alone)
    judged = judge_answers(evidence, exact=exact)
    if evidence.baseline is None:
        decision = _read_again(judged, params)
    else:
        decision = _equal(judged, params) if exact else _paired(judged, params)
    return _with_reading(decision, judged)


def _read_again(judged: JudgedArm, params: Params) -> CheckResult:
    n, confidence = len(judged.answers), float(params["confidence"])
    broken = sum(answer.misread is not None for answer in judged.answers)
    bound = upper_bound(broken, n, confidence) if n else None
    if reason := _open(judged, params):
        verdict, words = Verdict.INCONCLUSIVE, reason
    elif not judged.read_again:
        mute = sum(not answer.again for answer in judged.answers)
        verdict, words = Verdict.INCONCLUSIVE, f"the texts of {mute} of {n} answers cannot be read again"
    else:
        words = f"the calls of {n} answers are those of their texts, read again, at most {bound:.2g} are not"
        verdict = Verdict.FAULT if broken else Verdict.CERTIFIED
    return counted(verdict, words, n, broken, confidence=confidence)


def _equal(judged: JudgedArm, params: Params) -> CheckResult:
    """Arms that must agree."""
    n = len(judged.pairs)
    kinds = [pair.kind for pair in judged.pairs if pair.apart is not None]
    real, numerical = kinds.count("real"), kinds.count("numerical")
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    if real:
        verdict, words = Verdict.FAULT, f"{real} of {n} answers call something else than the baseline"
    elif reason := _unpaired(judged) or _open(judged, params):
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
    return counted(verdict, words, n, real, details={"differences": counts}, confidence=float(params["confidence"]))


def _paired(judged: JudgedArm, params: Params) -> CheckResult:
    """Arms that are independent draws of one law."""
    alone = judged.read_again and not params["within_margin"]
    n, result = len(judged.pairs), _read_again(judged, params)
    if not n:
        return result if alone else dataclasses.replace(result, verdict=Verdict.INCONCLUSIVE)
    worse = sum(pair.baseline_passed and not pair.passed for pair in judged.pairs)
    better = sum(pair.passed and not pair.baseline_passed for pair in judged.pairs)
    counts, margin, confidence = PairCounts(n, worse, better), float(params["margin"]), float(params["confidence"])
    test = mcnemar(counts)
    low, high = tango_lower(counts, confidence), tango_upper(counts, confidence)
    bound, loss = max(-low, high), (worse - better) / n
    words = f"{worse} answers pass in the baseline only and {better} in the candidate only, of {n} pairs"
    reason = _unpaired(judged) or _open(judged, params)
    if test.p < float(params["alpha"]):
        verdict = Verdict.FAULT
    elif alone:
        words = f"{result.summary}; {words}, differ by at most {bound:.2g}"
        details = {"worse": worse, "better": better}
        return dataclasses.replace(result, summary=words, p_value=test.p, details=details)
    elif reason:
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


def _unpaired(judged: JudgedArm) -> str:
    return f"{judged.unpaired} answers have no partner in the baseline" if judged.unpaired else ""


def _open(judged: JudgedArm, params: Params) -> str:
    """Why no arm can be certified on these answers; empty if one can."""
    n = len(judged.answers)
    if judged.silent:
        return f"the calls of {len(judged.silent)} answers are not known ({judged.silent[0]})"
    return f"{n} answers, fewer than {params['min_answers']}" if n < int(params["min_answers"]) else ""


def _with_reading(result: CheckResult, judged: JudgedArm) -> CheckResult:
    """The result with what every arm shows: the engine's reading, and answers that are wrong in both arms."""
    answers = judged.answers
    misread = [answer for answer in answers if answer.misread is not None]
    both = [answer for answer in answers if answer.ours and answer.pair is not None and answer.pair.theirs]
    verdict, words = result.verdict, result.summary
    if misread:
        verdict, words = Verdict.FAULT, f"{len(misread)} answers hold other calls than the engine reports; {words}"
    if both:
        words += f"; wrong in both arms: {len(both)}, which is about the model and not about speculation"
    counts = {
        "calls": sum(answer.calls for answer in answers),
        "with_calls": sum(answer.calls > 0 for answer in answers),
        "read_again": sum(answer.again for answer in answers),
        "misread": len(misread),
        "wrong": sum(answer.ours is not None for answer in answers),
        "wrong_in_both": len(both),
        "unread": len(judged.silent),
    }
    return dataclasses.replace(
        result,
        verdict=verdict,
        summary=words,
        findings=tuple(_findings(answers)[:MAX_FINDINGS]),
        details={**result.details, **counts},
    )


def _findings(answers: Sequence[JudgedAnswer]) -> list[Finding]:
    """The engine's reading first, the model's own mistakes last."""
    result: list[tuple[int, Finding]] = []
    for answer in answers:
        pair, ours = answer.pair, answer.ours
        apart, theirs = (None, None) if pair is None else (pair.apart, pair.theirs)
        messages = {
            0: answer.misread,
            1: None if pair is None or apart is None or not pair.kind else f"{pair.kind}: {apart} as in the baseline",
            2: None if ours is None or theirs is not None else f"the candidate's answer: {ours}",
            3: None if theirs is None or ours is not None else f"the baseline's answer: {theirs}",
            4: None if ours is None or theirs is None else f"in both arms: {ours}",
        }
        result += [
            (rank, Finding(answer.request_id, 0 if pair is None else pair.step, message))
            for rank, message in messages.items()
            if message is not None
        ]
    return [finding for _, finding in sorted(result, key=lambda item: item[0])]


def _plan(params: Params, design: Design) -> SampleSize | None:
    least = int(params["min_answers"])
    again = design.shown.gives(Part.CALLED_TEXT) and not params["within_margin"]
    if again or design.repeats:
        return SampleSize(least, ANSWERS, replay_effect(least), 0.0, POWER) if least else None
    alpha = 1.0 - float(params["confidence"])
    # both bounds must lie within the margin: the estimate may err to either side
    need = non_inferiority_need(DISCORDANT, float(params["margin"]), alpha=alpha, power=(1.0 + POWER) / 2.0)
    return dataclasses.replace(need, units=max(need.units, least), unit=ANSWERS, power=POWER)


def _examined(evidence: Evidence) -> Examined:
    """The tokens of the calls in answers that were read again, or that the baseline has too."""
    keys = frozenset() if evidence.baseline is None else frozenset(evidence.baseline.by_key())

    def mask(request: RequestRecord) -> Mask:
        inside, answer = np.zeros(len(request.tokens), np.bool_), answered(request)
        judged = answer is not None and (can_reread(answer) or request.key in keys)
        for span in spans_of(request) if judged else ():
            inside[span.start : span.stop] = True
        return inside

    return mask


CHECK = Check(
    name="tool_call_equality",
    claim="tools",
    defaults={
        "margin": 0.05,
        "within_margin": False,
        "alpha": 0.001,
        "confidence": 0.99,
        "min_answers": 1,
        "max_numerical": 0.01,
    },
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="the candidate calls what the target alone would have called, and its text holds the calls that it reports",
    effect="share of answers whose calls differ, or difference of the shares that pass",
    plan=_plan,
    covers=frozenset({Group.EVENTS}),
    examines=_examined,
)
