"""Law: emitted tokens follow the target's conditional distribution.

Claim: law. Null: each emitted token is drawn from its recorded p given all that came before. Statistic: a battery of
one-sample tests, Holm-adjusted: randomised transforms in three orders, score martingales for log p and for a leak of
the draft, a sequential mixture over named faults, by block position, on bonus tokens, and the components of the chain
rule if the arm declares that protocol. Effect: the estimated leak in total variation per emitted token, under r = (1 -
l) p + l q if q is known, else with the argmax of p in place of q; bound: its upper bound (99 % by default). Assumes
rows that are the target's, independent random numbers between requests, and that the number of requests was fixed
beforehand. Cannot see: wrong rows, repeated random numbers within a request's own stream, and departures below the
printed detectable leak; the bound covers only departures in the direction of the leak.
"""

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from audit.checks.base.interface import ByRequest, Check, ReadPart, read_part
from audit.checks.base.plans import plan_law
from audit.evidence.coverage.groups import Group
from audit.evidence.decisions import EMPTY
from audit.evidence.law.battery import ComponentTest, battery
from audit.evidence.law.leak import GREEDY, Leak, leak_of
from audit.evidence.law.sums import LawSums
from audit.evidence.law.table import LawPart, Tabulation, part_of
from audit.evidence.random_numbers import seed_of, shared_numbers
from audit.evidence.reading import RequestReading
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import MAX_FINDINGS, POOLED, CheckResult, Finding, Params, Verdict
from audit.stats.anytime.alternatives import ranking
from audit.stats.multiplicity import holm, percent
from engine.core.types import Floats


def _applies(evidence: Evidence) -> str | None:
    return GREEDY if any(request.trace.header.sampling.greedy for request in evidence.candidate.requests) else None


def _rows(reading: RequestReading) -> LawPart:
    # where one q is known the leak is towards q, and no request needs the argmax
    made = reading.decisions
    return part_of(made, argmax=not made.known.any())


class _Law:
    """The sums of the requests so far, until one cannot be read."""

    def __init__(self, evidence: Evidence, params: Params) -> None:
        arm = evidence.candidate
        self._params, self._shared = params, shared_numbers(arm)
        self._reason = None if len(arm.requests) else EMPTY
        self._generator = np.random.default_rng(seed_of(arm.requests))
        self._tabulation, self._law = Tabulation(self._generator), LawSums()

    def add(self, part: ReadPart[LawPart]) -> None:
        """Take the rows of the next request."""
        self._reason = self._reason or part.unreadable
        if self._reason is None and self._shared is None and part.taken is not None:
            self._law.add(self._tabulation.complete(part.taken))

    def result(self) -> CheckResult:
        """The check's result."""
        reason = self._reason or self._shared
        try:
            if reason is not None:
                return CheckResult(Verdict.INCONCLUSIVE, reason)
            return _result(self._law, self._generator, self._params)
        finally:
            self._law.close()


def _result(law: LawSums, generator: np.random.Generator, params: Params) -> CheckResult:
    components = battery(law, generator)
    adjusted = holm([component.p for component in components])
    rejected = [i for i in np.argsort(adjusted, kind="stable") if adjusted[i] < float(params["alpha"])]
    findings = [*law.impossible, *(_finding(components[i], adjusted[i]) for i in rejected)]
    leak = leak_of(law.towards_draft(), law.n, law.known > 0, float(params["confidence"]))
    lumping = _Lumping(law.tail, law.towards_draft().distance if law.known else 0.0, law.seen)
    # one or two requests may be too few for any component
    best = int(np.argmin(adjusted)) if components else None
    return CheckResult(
        verdict=_verdict(findings, law.n, leak, params),
        summary=_summary(findings, law.n, leak, len(components), params) + lumping.text,
        n=law.n,
        statistic=None if best is None else components[best].statistic,
        p_value=0.0 if law.impossible else None if best is None else float(adjusted[best]),
        effect=leak.effect,
        bound=leak.bound,
        margin=float(params["leak_margin"]),
        findings=tuple(findings[:MAX_FINDINGS]),
        details=_details(law, lumping, components, adjusted, leak),
    )


def _finding(component: ComponentTest, adjusted: float) -> Finding:
    message = (
        f"{component.title}: statistic {component.statistic:.4g}, adjusted p {adjusted:.2g}, n {component.n}, "
        f"effect {component.effect:.3g} {component.unit}"
    )
    return Finding(POOLED, 0, message)


def _verdict(findings: list[Finding], n: int, leak: Leak, params: Params) -> Verdict:
    if findings:
        return Verdict.FAULT
    enough = n >= int(params["min_tokens"]) and leak.bound <= float(params["leak_margin"])
    return Verdict.CERTIFIED if enough else Verdict.INCONCLUSIVE


def _summary(findings: list[Finding], n: int, leak: Leak, tests: int, params: Params) -> str:
    level = percent(float(params["confidence"]))
    bound = f"leak towards {leak.direction} at most {leak.bound:.3g} in total variation per token ({level})"
    if findings:
        return f"{len(findings)} departures from the law in {n} tokens; {findings[0].message}"
    if n < int(params["min_tokens"]):
        return f"{n} tokens are fewer than {params['min_tokens']}; no departure in {tests} tests"
    if leak.bound > float(params["leak_margin"]):
        return f"no departure in {tests} tests of {n} tokens, but {bound}; detectable leak {leak.detectable:.3g}"
    return f"no departure in {tests} tests of {n} tokens; {bound}"


@dataclass(frozen=True, slots=True)
class _Lumping:
    """The loss by lumping: the p-value is exact, but differences within the tail are invisible."""

    tail: float
    """Mean mass in the tails."""
    distance: float
    """Total variation between p and q, summed over the tokens with a known q."""
    on_cells: float
    """The same on the cells."""

    @property
    def seen(self) -> float:
        """The share of the distance that cells see, NaN without a q."""
        return self.on_cells / self.distance if self.distance else math.nan

    @property
    def text(self) -> str:
        """The end of the summary."""
        if not self.tail:
            return ""
        text = f"; read on cells: {self.tail:.2g} of the mass of p is in their tails"
        seen = self.seen
        return text if math.isnan(seen) else f"{text}, they see {seen:.1%} of the distance between p and q"


def _details(
    law: LawSums, lumping: _Lumping, components: tuple[ComponentTest, ...], adjusted: Floats, leak: Leak
) -> dict[str, Any]:
    return {
        "tail_mass": lumping.tail,
        "distance_seen": None if math.isnan(lumping.seen) else lumping.seen,
        "leak": {
            "direction": leak.direction,
            "share": leak.share,
            "tv": leak.effect,
            "tv_bound": leak.bound,
            "tv_detectable": leak.detectable,
        },
        "standard_error": leak.error if math.isfinite(leak.error) else None,
        "tokens_with_known_q": law.known,
        "impossible_tokens": len(law.impossible),
        "alternatives": [asdict(alternative) for alternative in ranking(law.process)],
        "components": [
            {
                "name": item.name,
                "stratum": item.stratum,
                "n": item.n,
                "statistic": item.statistic,
                "p": item.p,
                "p_adjusted": float(p),
                "effect": item.effect,
                "unit": item.unit,
            }
            for item, p in zip(components, adjusted, strict=True)
        ],
    }


BY_REQUEST = ByRequest(partial(read_part, _rows), _Law)
CHECK = Check(
    name="law",
    claim="law",
    needs=Level.L3,
    defaults={"alpha": 0.005, "leak_margin": 0.06, "min_tokens": 500, "confidence": 0.99},
    run=BY_REQUEST.run,
    by_request=BY_REQUEST,
    applies=_applies,
    foresee=lambda _params, design: GREEDY if design.greedy else None,
    null="each emitted token is drawn from its recorded p given all that came before",
    effect="total variation per emitted token",
    plan=plan_law,
    covers=frozenset({Group.DRAFTING, Group.PARAMETERS, Group.BATCH, Group.TREES}),
)
