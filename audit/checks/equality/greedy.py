"""Greedy equality: at temperature 0 the candidate's tokens are the baseline's.

Claim: equality. Null: every emitted token is the one that the target alone
would have chosen, up to the engine's own noise. Statistic: the number of real
divergences; any is a fault. A divergence is numerical if the baseline's score
of its own token leads that of the candidate's token by no more than the largest
change of a top-two margin between baseline and control at equal prefixes (a
Wilks bound). Effect and bound: real divergences per 1000 compared tokens and
the 99 % Clopper-Pearson upper bound. Assumes that the control's positions are
exchangeable with the judged ones. A baseline token that is not the argmax of its
own processed row is a fault of the baseline (rows needed: levels topk and full).
Cannot see: a wrong token that happens to be a near-tie, anything after the first
difference of a pair, and faults of the rows that the baseline shares. Text alone
(L0) gives no leads: equal texts are certified, different texts are inconclusive.
"""

from __future__ import annotations

import math

import numpy as np

from audit.checks.equality.triage import Instrument, judge_equality
from audit.checks.interface import Check, Design, NoEvidence, Params
from audit.checks.plans import at_least
from audit.evidence.coverage.examined import until_parted
from audit.evidence.coverage.groups import EVERY_GROUP
from audit.evidence.decisions import deciding_row
from audit.evidence.pairing import Divergence
from audit.evidence.records import Evidence, Level, RequestRecord
from audit.evidence.verdicts import CheckResult
from engine.core.errors import InvalidRequest
from engine.core.types import Floats, RecordLevel
from engine.record.columns import shape_fault
from engine.record.trace import Trace

SAMPLED = "greedy equality holds at temperature 0 only; at other temperatures see coupled_equality and law"


def _applies(evidence: Evidence) -> str | None:
    if evidence.baseline is None:
        return NoEvidence("there is no baseline arm to compare with")
    if not all(request.trace.header.sampling.greedy for request in evidence.candidate.requests):
        return SAMPLED
    return None


def _foresee(params: Params, design: Design) -> str | None:
    del params
    return None if design.greedy else SAMPLED


def margins(request: RequestRecord) -> Floats:
    """[E] largest minus second largest score."""
    return request.trace.margin


def lead_over(found: Divergence) -> float | None:
    """The baseline's score of its token minus that of the candidate's token.

    If the record lacks the candidate's token, the result is its smallest possible
    lead: that over the last recorded score, or the top-two margin.
    """
    trace, index, token = found.pair.baseline.trace, found.index, found.token
    if token is None or index >= len(trace.margin):
        return None
    if trace.header.level is RecordLevel.FULL and shape_fault(trace) is None:
        scores = deciding_row(trace, index).scores
        return float(scores[trace.tokens[index]] - scores[token])
    if trace.header.level is RecordLevel.TOPK and index < len(trace.top_id):
        return _top_score(trace, index, trace.tokens[index]) - _top_score(trace, index, token)
    return float(trace.margin[index])


def _top_score(trace: Trace, index: int, token: int) -> float:
    """The recorded score of a token, or the last recorded one, which bounds it from above."""
    place = np.flatnonzero(trace.top_id[index] == token)
    return float(trace.top_score[index, place[0] if len(place) else -1])


def behind(request: RequestRecord) -> Floats:
    """[E] the row's largest score minus that of the token, 0 within rounding; empty if the record holds no scores."""
    trace = request.trace
    if shape_fault(trace) is not None:
        return np.empty(0)
    if trace.header.level is RecordLevel.FULL:
        return np.array([_behind_best(trace, index) for index in range(len(trace.token))])
    if trace.header.level is RecordLevel.TOPK and len(trace.top_id) == len(trace.token):
        own = np.array([_top_score(trace, index, token) for index, token in enumerate(trace.tokens)])
        best = trace.top_score[:, 0] if len(own) else own
        return beyond_rounding(np.asarray(best - own), np.abs(best))
    return np.empty(0)


def _behind_best(trace: Trace, index: int) -> float:
    """How far a token is behind the best of its row; NaN if the row cannot be processed, which other checks report."""
    row, token = trace.logits[index], int(trace.token[index])
    best = float(row.max())
    if not math.isfinite(best):
        return math.nan
    if trace.header.sampling.plain_scores:
        return best - float(row[token])
    try:
        scores = deciding_row(trace, index).scores
    except InvalidRequest:
        return math.nan
    lead = float(scores.max() - scores[token])
    scale = max(float(np.abs(row[np.isfinite(row)]).max()), abs(float(scores.max()))) if lead else 0.0
    return float(beyond_rounding(np.array(lead), np.array(scale)))


def beyond_rounding(lead: Floats, scale: Floats) -> Floats:
    """Leads, 0 where an engine that adds its penalties in float32 could have rounded them away.

    A score takes at most four operations (repetition, frequency, presence, bias), each with half a unit in the last
    place of a term of size `scale`, and a lead compares two scores.
    """
    return np.where(lead > 4.0 * np.finfo(np.float32).eps * scale, lead, 0.0)


INSTRUMENT = Instrument(margins, lead_over, behind, "logits")


def _run(evidence: Evidence, params: Params) -> CheckResult:
    return judge_equality(evidence, params, INSTRUMENT)


CHECK = Check(
    name="greedy_equality",
    claim="equality",
    needs=Level.L0,
    defaults={"max_numerical_per_1000": 5.0, "min_tokens": 200, "confidence": 0.99, "noise_bound": -1.0},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="every token is the one that the target alone would have chosen, up to the engine's noise",
    effect="real divergences per 1000 tokens",
    plan=at_least("min_tokens", "compared tokens"),
    covers=EVERY_GROUP,
    examines=until_parted,
)
