"""The result of a check that counts wrong units, one of which is a fault."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from audit.evidence.verdicts import MAX_FINDINGS, CheckResult, Finding, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.power import replay_effect

NO_DETAILS: Final[Mapping[str, Any]] = {}


def counted(
    verdict: Verdict,
    summary: str,
    n: int,
    wrong: int,
    findings: Sequence[Finding] = (),
    details: Mapping[str, Any] = NO_DETAILS,
    confidence: float = 0.99,
) -> CheckResult:
    """The result on `n` units, `wrong` of which are: their share, its upper bound, and the first findings."""
    return CheckResult(
        verdict=verdict,
        summary=summary,
        n=n,
        statistic=float(wrong),
        effect=wrong / n if n else None,
        bound=upper_bound(min(wrong, n), n, confidence) if n else None,
        detectable=replay_effect(n) if n else None,
        findings=tuple(findings[:MAX_FINDINGS]),
        details=details,
    )
