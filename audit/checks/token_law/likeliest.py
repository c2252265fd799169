"""Temperature 0: the law of a token is the reference's most likely one, so that each token is judged by itself."""

from collections.abc import Iterator, Sequence
from typing import Final

from audit.evidence.anchor.rows import row_at
from audit.evidence.decisions import steps_by_token
from audit.evidence.records import RequestRecord
from audit.evidence.verdicts import CheckResult, Finding, Params, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.multiplicity import percent

MAX_FINDINGS: Final = 20


def judge_likeliest(requests: Sequence[RequestRecord], params: Params) -> CheckResult:
    """Find the tokens that trail the most likely one of the anchor's row by more than `lead_margin` nats."""
    tokens, near = sum(len(request.tokens) for request in requests), float(params["lead_margin"])
    findings = [finding for request in requests for finding in _behind(request, near)]
    bound = upper_bound(len(findings), tokens, float(params["confidence"]))
    text = f"{len(findings)} of {tokens} tokens trail the reference's most likely one by more than {near:g} nats"
    level = percent(float(params["confidence"]))
    return CheckResult(
        verdict=Verdict.FAULT if findings else Verdict.CERTIFIED if bound <= params["margin"] else Verdict.INCONCLUSIVE,
        summary=f"{text}; {findings[0].message}" if findings else f"{text}; at most {bound:.3g} of all do ({level})",
        n=tokens,
        statistic=float(len(findings)),
        effect=len(findings) / tokens if tokens else None,
        bound=bound,
        margin=float(params["margin"]),
        findings=tuple(findings[:MAX_FINDINGS]),
    )


def _behind(request: RequestRecord, near: float) -> Iterator[Finding]:
    steps = steps_by_token(request.trace)
    for index, token in enumerate(request.tokens):
        lead = row_at(request.trace, index).lead
        if lead < -near:
            message = f"token {index} is {token}, which another one leads by {-lead:.3g} nats in the reference's row"
            yield Finding(request.request_id, int(steps[index]), message)
