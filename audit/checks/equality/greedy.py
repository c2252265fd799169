"""Greedy equality: at temperature 0 the candidate's tokens are the baseline's.

Claim: equality. Null: every emitted token is the one that the target alone would have chosen, up to the engine's own
noise. Statistic: the number of real divergences; any is a fault. A divergence is numerical if the baseline's score of
its own token leads that of the candidate's token by no more than the largest change of a top-two margin between
baseline and control at equal prefixes (a Wilks bound). Effect and bound: real divergences per 1000 compared tokens and
the 99 % Clopper-Pearson upper bound. Assumes that the control's positions are exchangeable with the judged ones. A
baseline token that is not the argmax of its own processed row is a fault of the baseline (rows needed: levels topk and
full). Cannot see: a wrong token that happens to be a near-tie, anything after the first difference of a pair, and
faults of the rows that the baseline shares. Text alone (L0) gives no leads: equal texts are certified, different texts
are inconclusive.
"""

from functools import partial

from audit.checks.base.interface import Check
from audit.checks.base.plans import at_least
from audit.evidence.coverage.examined import until_parted
from audit.evidence.coverage.groups import EVERY_GROUP
from audit.evidence.divergence.greedy import INSTRUMENT
from audit.evidence.divergence.triage import judge_equality
from audit.evidence.records import Evidence
from audit.evidence.verdicts import NoEvidence

SAMPLED = "greedy equality holds at temperature 0 only; at other temperatures see coupled_equality and law"


def _applies(evidence: Evidence) -> str | None:
    if evidence.baseline is None:
        return NoEvidence("there is no baseline arm to compare with")
    if not all(request.trace.header.sampling.greedy for request in evidence.candidate.requests):
        return SAMPLED
    return None


CHECK = Check(
    name="greedy_equality",
    claim="equality",
    defaults={"max_numerical_per_1000": 5.0, "min_tokens": 200, "confidence": 0.99, "noise_bound": -1.0},
    run=partial(judge_equality, instrument=INSTRUMENT),
    applies=_applies,
    foresee=lambda _params, design: None if design.greedy else SAMPLED,
    null="every token is the one that the target alone would have chosen, up to the engine's noise",
    effect="real divergences per 1000 tokens",
    plan=at_least("min_tokens", "compared tokens"),
    covers=EVERY_GROUP,
    examines=until_parted,
)
