"""Coupled equality: under shared randomness the candidate's sampled tokens are the baseline's.

Claim: equality. Null: every emitted token is the target's own Gumbel-max sample
under the noise of its position, which plain decoding also draws. Statistic: the
number of real divergences; any is a fault. A divergence is numerical if the
baseline's log p + noise of its own token leads that of the candidate's token by
no more than the largest change of that lead between baseline and control at
equal prefixes (a Wilks bound), or if one of the two tokens is that close to a
truncation threshold. Needs the baseline's rows to triage. Effect and bound:
real divergences per 1000 compared tokens and the 99 % Clopper-Pearson upper
bound. Assumes that the control's positions are exchangeable with the judged
ones. A baseline token that is not the best of its own perturbed row is a fault of
the baseline. Cannot see: whether the noise is random at all, a wrong token at a
near-tie, and anything after the first difference of a pair.
"""

from __future__ import annotations

import math

import numpy as np

from audit.checks.equality.greedy import beyond_rounding
from audit.checks.equality.triage import Instrument, judge_equality
from audit.checks.interface import Check, Design, NoEvidence, Params
from audit.checks.plans import at_least
from audit.evidence.coverage.examined import until_parted
from audit.evidence.coverage.groups import EVERY_GROUP
from audit.evidence.decisions import deciding_row
from audit.evidence.pairing import Divergence, pair_arms
from audit.evidence.records import Evidence, Level, RequestRecord
from audit.evidence.verdicts import CheckResult, Verdict
from engine.core.types import Floats, Protocol, RecordLevel, SamplingParams
from engine.record.columns import shape_fault
from engine.record.effective import LoopOwner
from engine.sampling.rng import Randomness
from engine.sampling.transforms import softmax

OTHER_RULE = "coupled equality holds for the gumbel protocol only"
GREEDY = "at temperature 0 see greedy_equality"
FOREIGN = "another engine drew the numbers, and its noise is not known; see same_seed"


def _applies(evidence: Evidence) -> str | None:
    requests = evidence.candidate.requests
    if evidence.baseline is None:
        return NoEvidence("there is no baseline arm to compare with")
    if not all(request.trace.header.protocol is Protocol.GUMBEL for request in requests):
        return OTHER_RULE
    if any(request.trace.header.sampling.greedy for request in requests):
        return GREEDY
    return None if evidence.candidate.ours else FOREIGN


def _foresee(params: Params, design: Design) -> str | None:
    del params
    if design.shown.protocol is not Protocol.GUMBEL:
        return OTHER_RULE
    if design.greedy:
        return GREEDY
    return None if design.shown.decoder is LoopOwner.OWN else FOREIGN


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


def lead_over(found: Divergence) -> float | None:
    """The baseline's lead over the candidate's token, or a truncation threshold's distance if smaller."""
    request, index, token = found.pair.baseline, found.index, found.token
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


def _run(evidence: Evidence, params: Params) -> CheckResult:
    assert evidence.baseline is not None
    for pair in pair_arms(evidence.candidate, evidence.baseline).pairs:
        ours, theirs = pair.candidate.trace.header, pair.baseline.trace.header
        if (ours.stream, ours.sampling) != (theirs.stream, theirs.sampling) or theirs.protocol is not Protocol.GUMBEL:
            reason = f"request {pair.candidate.request_id} and its baseline do not share their random numbers"
            return CheckResult(Verdict.INCONCLUSIVE, f"{reason}, protocol or sampling parameters")
    return judge_equality(evidence, params, INSTRUMENT)


CHECK = Check(
    name="coupled_equality",
    claim="equality",
    needs=Level.L1,
    defaults={"max_numerical_per_1000": 5.0, "min_tokens": 200, "confidence": 0.99, "noise_bound": -1.0},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="every token is the one that the target alone would have drawn from the same numbers, up to noise",
    effect="real divergences per 1000 tokens",
    plan=at_least("min_tokens", "compared tokens"),
    covers=EVERY_GROUP,
    examines=until_parted,
)
