"""Leads under shared noise: log p + noise of the baseline's choice over another token."""

import math

import numpy as np

from audit.evidence.decisions import deciding_row
from audit.evidence.divergence.greedy import beyond_rounding
from audit.evidence.divergence.triage import Instrument
from audit.evidence.pairing import Divergence
from audit.evidence.records import RequestRecord
from engine.core.types import Floats, RecordLevel, SamplingParams
from engine.record.columns import shape_fault
from engine.sampling.rng import Randomness
from engine.sampling.transforms import softmax


def has_rows(request: RequestRecord) -> bool:
    """True if the perturbed scores can be recomputed."""
    return request.trace.header.level is RecordLevel.FULL and shape_fault(request.trace) is None


def perturbed(request: RequestRecord, index: int) -> Floats:
    """[V] log p plus the position's noise at a token, -inf outside the support; needs rows."""
    trace, header = request.trace, request.trace.header
    p = deciding_row(trace, index).p
    noise = Randomness(header.sampling.seed, header.stream).gumbel(len(header.prompt) + index, len(p))
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(p) + noise)


def margins(request: RequestRecord) -> Floats:
    """[E] largest minus second largest perturbed score, NaN with one possible token; empty without rows."""
    if not has_rows(request):
        return np.empty(0)
    leads = [np.partition(perturbed(request, index), -2)[-2:] for index in range(len(request.trace.token))]
    pairs = np.array(leads).reshape(-1, 2)
    return np.where(np.isfinite(pairs[:, 0]), pairs[:, 1] - pairs[:, 0], np.nan)


def behind(request: RequestRecord) -> Floats:
    """[E] the largest perturbed score minus that of the token, 0 within rounding; empty without rows."""
    if not has_rows(request) or not np.isfinite(request.trace.logits.max(axis=1, initial=-np.inf)).all():
        return np.empty(0)
    return np.array([_behind_best(request, index) for index in range(len(request.trace.token))])


def _behind_best(request: RequestRecord, index: int) -> float:
    scores, token = perturbed(request, index), request.tokens[index]
    lead = float(scores.max() - scores[token])
    if not math.isfinite(lead):
        header = request.trace.header
        p = softmax(deciding_row(request.trace, index).scores / header.sampling.temperature)
        lead = threshold_distance(p, token, header.sampling)
    return float(beyond_rounding(np.array(lead), np.abs(scores.max())))


def lead_over(divergence: Divergence) -> float | None:
    """The baseline's lead over the candidate's token, or a truncation threshold's distance if smaller."""
    request, index, token = divergence.pair.baseline, divergence.index, divergence.token
    if token is None or not has_rows(request):
        return None
    scores = perturbed(request, index)
    header, own = request.trace.header, request.tokens[index]
    p = softmax(deciding_row(request.trace, index).scores / header.sampling.temperature)
    lead = float(scores[own] - scores[token])
    if not math.isfinite(lead):
        # outside the support: only a threshold this close could have admitted it
        return threshold_distance(p, token, header.sampling)
    return min(lead, threshold_distance(p, own, header.sampling))


def threshold_distance(p: Floats, token: int, params: SamplingParams) -> float:
    """Distance of a token from the nearest truncation threshold; infinite without truncation.

    `p` [V] is the distribution before truncation. Distances to top-k and min-p
    are differences of log p, that to top-p is mass.
    """
    distances = [math.inf]
    own = math.log(max(p[token], np.finfo(np.float64).tiny))
    if params.min_p > 0:
        distances.append(abs(own - math.log(params.min_p * p.max())))
    if 0 < params.top_k < len(p):
        edge = np.log(np.maximum(np.sort(p)[::-1][params.top_k - 1 : params.top_k + 1], np.finfo(np.float64).tiny))
        distances.append(abs(own - float(edge[1] if own >= edge[0] else edge[0])))
    if params.top_p < 1:
        kept = p >= np.sort(p)[::-1][params.top_k - 1] if 0 < params.top_k < len(p) else np.ones(len(p), dtype=np.bool_)
        before = float(p[kept & (p > p[token])].sum() / p[kept].sum())
        distances.append(abs(before - params.top_p))
    return min(distances)


INSTRUMENT = Instrument(margins, lead_over, behind, "in log p")
