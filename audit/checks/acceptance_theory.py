"""Acceptance theory: drafted tokens are accepted as often as the recorded p and q say.

Claim: acceptance. Null: at each position where tokens were drafted, one of them is kept with the probability of the
declared rule - sum min(p, q) for rejection sampling of a drawn token, p of the drafted tokens for a deterministic
draft, sum p q for an independent draft compared with the target's own sample, and the coupled closed form for shared
noise. Statistic: observed minus expected acceptances, pooled, by block position and by domain, Holm-adjusted. Effect:
the pooled difference in rate; bound: the larger end of its interval (99 % by default). Assumes that the recorded rows
are those that decided. Cannot see: what is emitted after a rejection, bonus tokens, reused random numbers, or a draft
that is merely poor.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.checks.base.interface import ByRequest, Check, Design, ReadPart, read_part
from audit.checks.base.plans import plan_acceptance
from audit.evidence.acceptance import expected_acceptance
from audit.evidence.coverage.groups import Group
from audit.evidence.decisions import EMPTY, Decisions
from audit.evidence.reading import RequestReading
from audit.evidence.records import Evidence, Level
from audit.evidence.verdicts import POOLED, CheckResult, Finding, Params, Verdict
from audit.stats.acceptance.expected import BernoulliTest, bernoulli_test_of
from audit.stats.multiplicity import holm, percent
from audit.stats.spooled import Block, SpooledColumns
from engine.core.types import Floats, Protocol, Role

MIN_POSITIONS = 30
"""Strata with fewer positions are not tested."""
LAST_DEPTH = 7


@dataclass(frozen=True, slots=True)
class DraftedPositions:
    """[n] positions of one request with drafted tokens for which a formula gives the acceptance probability."""

    domain: str
    accepted: NDArray[np.bool_]
    probability: Floats
    depth: NDArray[np.int64]
    without_formula: int
    """Positions with drafted tokens for which there is no formula (q unknown)."""


LOSSY = "the verifier declares itself lossy; there is no acceptance law for it"
GREEDY = "at temperature 0 acceptance is no matter of chance; see greedy_equality"
NO_LAW = {
    Protocol.GREEDY: "the greedy protocol compares with the argmax; there is no acceptance law",
    Protocol.BLOCK: "the block protocol decides on a draft as a whole; there is no acceptance law by place",
}


def _applies(evidence: Evidence) -> str | None:
    requests = evidence.candidate.requests
    if not all(request.trace.header.lossless for request in requests):
        return LOSSY
    if any(request.trace.header.sampling.greedy for request in requests):
        return GREEDY
    protocols = {request.trace.header.protocol for request in requests}
    return next((reason for protocol, reason in NO_LAW.items() if protocol in protocols), None)


def _foresee(_params: Params, design: Design) -> str | None:
    if not design.shown.lossless:
        return LOSSY
    return GREEDY if design.greedy else NO_LAW.get(design.shown.protocol)


def positions(made: Decisions) -> DraftedPositions:
    """The drafted positions of one request."""
    chance = expected_acceptance(made)
    kept = ~np.isnan(chance)
    return DraftedPositions(
        domain=made.domain,
        accepted=np.asarray(made.role[kept] == Role.ACCEPTED),
        probability=chance[kept],
        depth=made.depth[kept],
        without_formula=int(np.sum((made.candidates > 0) & ~kept)),
    )


def _positions(reading: RequestReading) -> DraftedPositions:
    return positions(reading.decisions)


class _Acceptance:
    """The drafted positions of the requests so far, fourteen bytes each, on disk from a length on."""

    def __init__(self, evidence: Evidence, params: Params) -> None:
        self._params = params
        self._reason = None if len(evidence.candidate.requests) else EMPTY
        self._columns = SpooledColumns({"accepted": "?", "probability": "f8", "depth": "u1", "domain": "u4"})
        self._domains: dict[str, int] = {}
        self._depths: set[int] = set()
        self._without_formula = 0

    def add(self, part: ReadPart[DraftedPositions]) -> None:
        """Take the positions of the next request."""
        self._reason, outcome = self._reason or part.unreadable, part.taken
        if self._reason is not None or outcome is None:
            return
        self._without_formula += outcome.without_formula
        depth = np.minimum(outcome.depth, LAST_DEPTH)
        self._depths.update(np.unique(depth).tolist())
        domain = self._domains.setdefault(outcome.domain, len(self._domains)) if len(depth) else 0
        self._columns.append(
            {
                "accepted": outcome.accepted,
                "probability": outcome.probability,
                "depth": depth,
                "domain": np.full(len(depth), domain),
            }
        )

    def result(self) -> CheckResult:
        """The check's result."""
        try:
            if self._reason is not None:
                return CheckResult(Verdict.INCONCLUSIVE, self._reason)
            if not len(self._columns):
                return CheckResult(Verdict.INCONCLUSIVE, "no drafted token with a known acceptance probability")
            tests = dict(self._strata(float(self._params["confidence"])))
            return _result(tests, self._without_formula, self._params)
        finally:
            self._columns.close()

    def _strata(self, confidence: float) -> Iterator[tuple[str, BernoulliTest]]:
        """The pooled test first, then block positions, then domains."""
        yield "all", bernoulli_test_of(self._columns, confidence)
        for value in sorted(self._depths):
            yield from self._stratum(f"block position {value}", "depth", value)
        for name in sorted(self._domains):
            yield from self._stratum(f"domain {name}", "domain", self._domains[name])

    def _stratum(self, name: str, column: str, value: int) -> Iterator[tuple[str, BernoulliTest]]:
        def mask(block: Block) -> NDArray[np.bool_]:
            return np.asarray(block[column] == value)

        if MIN_POSITIONS <= self._columns.count((column,), mask) < len(self._columns):
            yield name, bernoulli_test_of(self._columns, mask=mask, by=(column,))


def _result(tests: Mapping[str, BernoulliTest], without_formula: int, params: Params) -> CheckResult:
    names, adjusted = list(tests), holm([test.p for test in tests.values()])
    rejected = [i for i in np.argsort(adjusted, kind="stable") if adjusted[i] < float(params["alpha"])]
    pooled = tests[names[0]]
    bound = max(abs(pooled.low), abs(pooled.high))
    margin = float(params["margin"])
    return CheckResult(
        verdict=_verdict(bool(rejected), bound, margin),
        summary=_summary(pooled, bound, params, [names[i] for i in rejected]),
        n=pooled.n,
        statistic=pooled.z,
        p_value=float(adjusted.min()),
        effect=(pooled.observed - pooled.expected) / pooled.n,
        bound=bound,
        margin=margin,
        findings=tuple(_finding(names[i], tests[names[i]], float(adjusted[i])) for i in rejected),
        details={
            "positions_without_formula": without_formula,
            "standard_error": pooled.error,
            "strata": [_row(name, test, float(p)) for (name, test), p in zip(tests.items(), adjusted, strict=True)],
        },
    )


def _verdict(rejected: bool, bound: float, margin: float) -> Verdict:
    if rejected:
        return Verdict.FAULT
    return Verdict.CERTIFIED if bound <= margin else Verdict.INCONCLUSIVE


def _summary(pooled: BernoulliTest, bound: float, params: Params, rejected: list[str]) -> str:
    rates = (
        f"{pooled.observed} of {pooled.n} drafted tokens kept ({pooled.observed / pooled.n:.3f}), "
        f"theory {pooled.expected / pooled.n:.3f}"
    )
    if rejected:
        return f"{rates}; differs in: {', '.join(rejected)}"
    margin, level = float(params["margin"]), percent(float(params["confidence"]))
    within = "within" if bound <= margin else "not within"
    return f"{rates}; the difference is at most {bound:.3f} ({level}), {within} the margin {margin:g}"


def _row(name: str, test: BernoulliTest, adjusted: float) -> dict[str, object]:
    counts = {"n": test.n, "observed": test.observed, "expected": test.expected}
    return {"name": name, **counts, "z": test.z, "p": test.p, "p_adjusted": adjusted}


def _finding(name: str, test: BernoulliTest, adjusted: float) -> Finding:
    message = (
        f"{name}: {test.observed} of {test.n} kept, expected {test.expected:.1f}, "
        f"z {test.z:.2f}, adjusted p {adjusted:.2g}"
    )
    return Finding(POOLED, 0, message)


BY_REQUEST = ByRequest(partial(read_part, _positions), _Acceptance)
CHECK = Check(
    name="acceptance_theory",
    claim="acceptance",
    needs=Level.L3,
    defaults={"margin": 0.05, "alpha": 0.001, "confidence": 0.99},
    run=BY_REQUEST.run,
    by_request=BY_REQUEST,
    applies=_applies,
    foresee=_foresee,
    null="a drafted token is kept with the probability that p, q and the declared rule give",
    effect="difference in rate",
    plan=plan_acceptance,
    covers=frozenset({Group.DRAFTING}),
)
