"""Coupled equality: under shared randomness the candidate's sampled tokens are the baseline's.

Claim: equality. Null: every emitted token is the target's own Gumbel-max sample under the noise of its position, which
plain decoding also draws. Statistic: the number of real divergences; any is a fault. A divergence is numerical if the
baseline's log p + noise of its own token leads that of the candidate's token by no more than the largest change of that
lead between baseline and control at equal prefixes (a Wilks bound), or if one of the two tokens is that close to a
truncation threshold. Needs the baseline's rows to triage. Effect and bound: real divergences per 1000 compared tokens
and the 99 % Clopper-Pearson upper bound. Assumes that the control's positions are exchangeable with the judged ones. A
baseline token that is not the best of its own perturbed row is a fault of the baseline. Cannot see: whether the noise
is random at all, a wrong token at a near-tie, and anything after the first difference of a pair.
"""

from audit.checks.base.interface import Check, Design
from audit.checks.base.plans import at_least
from audit.evidence.coverage.examined import until_parted
from audit.evidence.coverage.groups import EVERY_GROUP
from audit.evidence.divergence.coupled import INSTRUMENT
from audit.evidence.divergence.triage import judge_equality
from audit.evidence.pairing import pair_arms
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import CheckResult, NoEvidence, Params, Verdict
from engine.core.types import Protocol
from engine.record.effective import LoopOwner

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


def _foresee(_params: Params, design: Design) -> str | None:
    if design.shown.protocol is not Protocol.GUMBEL:
        return OTHER_RULE
    if design.greedy:
        return GREEDY
    return None if design.shown.decoder is LoopOwner.OWN else FOREIGN


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
