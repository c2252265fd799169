"""Acceptance outliers: no request's drafts are accepted improbably seldom or often beside its fellow requests.

Claim: acceptance. Null: the accepted tokens of every request follow the rates of its domain's requests, up to an
effect on the log odds that differs between requests. Statistic: the smallest chance of so few or so many accepted
tokens, by Holm over all requests; a fault below `alpha`. Assumes that the effects have a log-concave density, so that
their tails are no heavier than exponential beside the deciles of the sample; with normal tails assumed, a request
below `alpha` is a lead and leaves the arm inconclusive. Effect and bound: the share of its expected accepted tokens
that a request lacks, and the share at which a request of middle length is named with probability 0.9. An alarm of
quality: few accepted drafts may mean garbled text, a broken draft or hard text, many a loop. Cannot see: what most
requests have in common, and what the tokens are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.checks.base.interface import Check, Design
from audit.evidence.records import Evidence, RequestRecord
from audit.evidence.verdicts import CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.acceptance.outliers import AcceptanceChance, AcceptanceFit, Plan, fit, judged
from engine.backends.evidence import Part
from engine.core.sequences import grouped
from engine.core.types import Role

NO_DRAFTS = NoEvidence("no record says how many tokens each request drafted and how many were accepted")
TOO_FEW = "no domain has min_answers requests with drafts"


@dataclass(frozen=True, slots=True)
class OddRequest:
    """A request and its chances."""

    name: str
    domain: str
    chance: AcceptanceChance

    @property
    def lack(self) -> float:
        """The share of its expected accepted tokens that it lacks; negative where it has more."""
        return 1.0 - self.chance.accepted / self.chance.expected

    def told(self) -> str:
        """The request in words."""
        result, few = self.chance, self.chance.accepted < self.chance.expected
        return (
            f"{result.accepted} of {result.drafted} drafted tokens accepted, {'fewer' if few else 'more'} than the "
            f"{result.expected:.1f} expected of domain {self.domain}"
        )


def plan_of(request: RequestRecord) -> Plan:
    """Drafted and accepted tokens by step with a draft: of the record, or else of the account in the answer.

    An account without steps counts every drafted token as a step of its own. Empty without an account.
    """
    trace = request.trace
    if int(np.sum(trace.n_drafted)):
        owner = np.repeat(np.arange(trace.steps), trace.n_emitted)
        kept = np.bincount(owner[trace.role == Role.ACCEPTED], minlength=trace.steps)
        return _sound(zip(trace.n_drafted.tolist(), kept.tolist(), strict=True))
    account = trace.header.facts.get("speculation")
    if not isinstance(account, Mapping):
        return ()
    drafted, accepted = account.get("per_step_drafted"), account.get("per_step_accepted")
    if isinstance(drafted, Sequence) and isinstance(accepted, Sequence) and len(drafted) == len(accepted):
        return _sound(zip(drafted, accepted, strict=True))
    drafted, accepted = account.get("drafted"), account.get("accepted")
    if isinstance(drafted, int) and isinstance(accepted, int) and 0 <= accepted <= drafted:
        return ((1, 1),) * accepted + ((1, 0),) * (drafted - accepted)
    return ()


def _sound(steps: Iterable[tuple[Any, Any]]) -> Plan:
    """The steps with a draft; none at all if one accepted more than it drafted."""
    result = [(int(drafted), int(accepted)) for drafted, accepted in steps if drafted]
    return tuple(result) if all(0 <= accepted <= drafted for drafted, accepted in result) else ()


def _foresee(params: Params, design: Design) -> str | None:
    if not (design.shown.gives(Part.DRAFTS) or design.shown.gives(Part.COUNTS)):
        return NO_DRAFTS
    return None if design.requests >= params["min_answers"] else TOO_FEW


def _run(evidence: Evidence, params: Params) -> CheckResult:
    planned = ((request, plan_of(request)) for request in evidence.candidate.requests)
    domains = grouped((request.domain, (request.request_id, plan)) for request, plan in planned if plan)
    large = {name: item for name, item in sorted(domains.items()) if len(item) >= params["min_answers"]}
    small = {name: len(item) for name, item in sorted(domains.items()) if name not in large}
    if not large:
        return CheckResult(Verdict.NOT_RUN, TOO_FEW, n=0, details={"not_judged": small})
    samples = {name: fit([plan for _, plan in item]) for name, item in large.items()}
    names = [(request, domain) for domain, item in large.items() for request, _ in item]
    result = judged(list(samples.values()))
    requests = [OddRequest(*name, chance) for name, chance in zip(names, result, strict=True)]
    return _result(requests, samples, small, params)


def _result(
    requests: Sequence[OddRequest], samples: Mapping[str, AcceptanceFit], small: Mapping[str, int], params: Params
) -> CheckResult:
    alpha, margin = float(params["alpha"]), float(params["margin"])
    ordered = sorted(requests, key=lambda item: (item.chance.adjusted, item.chance.suspected))
    named = [item for item in ordered if item.chance.adjusted <= alpha]
    leads = [item for item in ordered if item.chance.suspected <= alpha and item not in named]
    seen = {domain: sample.detectable(alpha / len(requests)) for domain, sample in samples.items()}
    bound = max(1.0 if loss is None else loss for loss in seen.values())
    sure = not leads and not small and bound <= margin
    return CheckResult(
        verdict=Verdict.FAULT if named else Verdict.CERTIFIED if sure else Verdict.INCONCLUSIVE,
        summary=_summary(named, leads, requests, bound),
        n=len(requests),
        statistic=ordered[0].chance.adjusted,
        effect=max(abs(request.lack) for request in requests),
        bound=bound,
        margin=margin,
        detectable=None if None in seen.values() else bound,
        findings=_findings(named, leads)[: int(params["max_findings"])],
        details={
            "domains": {name: _of_sample(sample, seen[name]) for name, sample in samples.items()},
            "not_judged": dict(small),
            "leads": len(leads),
            "requests": [_row(item) for item in ordered[: int(params["max_findings"])]],
        },
    )


def _findings(named: Sequence[OddRequest], leads: Sequence[OddRequest]) -> tuple[Finding, ...]:
    sure = [Finding(item.name, 0, f"{item.told()}; chance {item.chance.adjusted:.2g}") for item in named]
    return (*sure, *(Finding(lead.name, 0, f"{lead.told()}; chance {_lead(lead)}") for lead in leads))


def _lead(request: OddRequest) -> str:
    return f"{request.chance.suspected:.2g} if the requests differ normally, {request.chance.adjusted:.2g} if not"


def _summary(named: Sequence[OddRequest], leads: Sequence[OddRequest], requests: Sequence[Any], bound: float) -> str:
    if named:
        return f"{len(named)} of {len(requests)} requests stand out, first: {named[0].told()}"
    shown = "no loss of acceptance would show" if bound >= 1.0 else f"a loss of {bound:.0%} would show"
    if leads:
        return f"{len(leads)} of {len(requests)} requests may stand out, first: {leads[0].told()}; {shown}"
    return f"none of {len(requests)} requests stands out; {shown}"


def _of_sample(sample: AcceptanceFit, seen: float | None) -> dict[str, Any]:
    rates = [round(float(rate), 4) for rate in sample.rates]
    return {"requests": len(sample.laws), "rates": rates, "spread": sample.spread, "detectable": seen}


def _row(request: OddRequest) -> dict[str, Any]:
    chance = request.chance
    counts = {"accepted": chance.accepted, "drafted": chance.drafted, "expected": round(chance.expected, 2)}
    return {"request": request.name, **counts, "chance": chance.adjusted, "chance_normal": chance.suspected}


CHECK = Check(
    name="acceptance_outliers",
    claim="acceptance",
    defaults={"alpha": 0.005, "margin": 0.8, "min_answers": 20, "max_findings": 20},
    run=_run,
    applies=lambda evidence: None if any(plan_of(request) for request in evidence.candidate.requests) else NO_DRAFTS,
    foresee=_foresee,
    null="every request's drafts are accepted as those of its domain's requests, up to its difficulty",
    effect="share of its expected accepted tokens that a request lacks",
)
