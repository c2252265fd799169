"""Leads of greedy decoding: logits of the baseline's choice over another token."""

import math

import numpy as np

from audit.evidence.decisions import deciding_row
from audit.evidence.divergence.triage import Instrument
from audit.evidence.pairing import Divergence
from audit.evidence.records import RequestRecord
from engine.core.errors import InvalidRequest
from engine.core.types import Floats, RecordLevel
from engine.record.columns import shape_fault
from engine.record.trace import Trace


def margins(request: RequestRecord) -> Floats:
    """[E] largest minus second largest score."""
    return request.trace.margin


def lead_over(divergence: Divergence) -> float | None:
    """The baseline's score of its token minus that of the candidate's token.

    If the record lacks the candidate's token, the result is its smallest possible
    lead: that over the last recorded score, or the top-two margin.
    """
    trace, index, token = divergence.pair.baseline.trace, divergence.index, divergence.token
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
