"""Buckets of context lengths, each twice as long as the one before; measures of each: tokens against the baseline's,
tokens against p, acceptance against its formula.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from audit.evidence.acceptance import expected_acceptance
from audit.evidence.decisions import decisions
from audit.evidence.divergence import coupled, greedy
from audit.evidence.divergence.triage import triage
from audit.evidence.law.battery import ComponentTest, token_tests
from audit.evidence.law.leak import estimate_leak
from audit.evidence.law.table import tabulate
from audit.evidence.pairing import compared, divergence, measure_noise, pair_arms
from audit.evidence.records import ArmRecord, Evidence, RequestRecord
from audit.evidence.verdicts import Finding
from audit.stats.acceptance.expected import bernoulli_test
from audit.stats.binomial import upper_bound
from engine.core.types import Floats, Protocol, Role

FACT: Final = "context"
"""Key of the target's maximum in an engine's effective configuration."""
FIRST: Final = 64
"""End of the first bucket."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Contexts of `low` to `high - 1` tokens before the token that is judged."""

    low: int
    high: int

    @property
    def name(self) -> str:
        """The lengths, both ends included."""
        return f"{self.low}-{self.high - 1}"

    def has(self, contexts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n] true where a context is in the bucket."""
        return np.asarray((contexts >= self.low) & (contexts < self.high))


def buckets_up_to(maximum: int) -> tuple[Bucket, ...]:
    """All buckets; the last one ends at `maximum`."""
    borders = [0, FIRST]
    while borders[-1] < maximum:
        borders.append(2 * borders[-1])
    borders[-1] = maximum
    return tuple(Bucket(low, high) for low, high in pairwise(borders))


def contexts_of(request: RequestRecord) -> NDArray[np.int64]:
    """[E] tokens before each emitted token, prompt included."""
    return len(request.trace.header.prompt) + np.arange(len(request.tokens))


def longest(requests: Iterable[RequestRecord]) -> int:
    """The longest context with its token, prompt included."""
    return max((len(request.trace.header.prompt) + len(request.tokens) for request in requests), default=0)


def maximum_of(arm: ArmRecord, given: int) -> int | None:
    """The target's maximum: the suite's word, else the engine's; None if neither says it."""
    stated = arm.effective.facts.get(FACT)
    return given or (stated if isinstance(stated, int) else None)


class Kind(StrEnum):
    """Subject of a measure."""

    EQUALITY = "equality"
    LAW = "law"
    ACCEPTANCE = "acceptance"


@dataclass(frozen=True, slots=True)
class Measure:
    """One comparison in one bucket.

    n: tokens, or decisions of known probability.
    effect: share of differing tokens, total variation per token, or difference in rate; None if there is none yet.
    bound: its upper bound.
    tests: the tests behind it; none for equality.
    findings: contradictions, each a fault by itself.
    unclear: differences that nothing attributes.
    """

    kind: Kind
    n: int
    effect: float | None = None
    bound: float | None = None
    tests: tuple[ComponentTest, ...] = ()
    findings: tuple[Finding, ...] = ()
    unclear: int = 0


Measures = Mapping[Bucket, Measure]


def equality(evidence: Evidence, buckets: Sequence[Bucket], confidence: float) -> Measures:
    """Real divergences from the baseline by the context in which they begin; the evidence must have a baseline."""
    assert evidence.baseline is not None
    pairs = pair_arms(evidence.candidate, evidence.baseline).pairs
    contexts = [contexts_of(pair.candidate)[: compared(pair)] for pair in pairs]
    counts = {item: sum(int(item.has(part).sum()) for part in contexts) for item in buckets}
    real: dict[Bucket, list[Finding]] = {item: [] for item in buckets}
    unclear = dict.fromkeys(buckets, 0)
    parted = [pair for pair in map(divergence, pairs) if pair is not None]
    instrument = greedy.INSTRUMENT if all_greedy(evidence.candidate.requests) else coupled.INSTRUMENT
    noise = measure_noise(evidence.baseline, evidence.controls, instrument.margins) if parted else None
    for member in parted:
        assert noise is not None
        judged = triage(member, noise, instrument, {})
        at = len(member.pair.candidate.trace.header.prompt) + member.index
        bucket = next((one for one in buckets if one.low <= at < one.high), buckets[-1])
        if judged.kind == "real":
            finding = judged.finding(noise, instrument.unit)
            real[bucket].append(dataclasses.replace(finding, message=f"at context {at}: {finding.message}"))
        elif judged.kind != "numerical":
            unclear[bucket] += 1
    return {item: _equality(counts[item], tuple(real[item]), unclear[item], confidence) for item in buckets}


def _equality(tokens: int, real: tuple[Finding, ...], unclear: int, confidence: float) -> Measure:
    if not tokens:
        return Measure(Kind.EQUALITY, 0, findings=real, unclear=unclear)
    count = min(len(real), tokens)
    bound = upper_bound(count, tokens, confidence)
    return Measure(Kind.EQUALITY, tokens, count / tokens, bound, findings=real, unclear=unclear)


def all_greedy(requests: Sequence[RequestRecord]) -> bool:
    """True at temperature 0."""
    return all(request.trace.header.sampling.greedy for request in requests)


def law(
    requests: Sequence[RequestRecord], buckets: Sequence[Bucket], confidence: float, generator: np.random.Generator
) -> Measures:
    """Tokens against p by the context of each."""
    evidence = tabulate(requests, generator)
    contexts = np.concatenate([contexts_of(request) for request in requests])
    measures = {}
    for item in buckets:
        table = evidence.table.part(item.has(contexts))
        tests = tuple(token_tests(table, item.name, generator))
        leak = estimate_leak(table, confidence) if tests else None
        measures[item] = Measure(
            Kind.LAW,
            len(table.depth),
            None if leak is None else leak.effect,
            None if leak is None else leak.bound,
            tests,
        )
    return measures


@dataclass(frozen=True, slots=True)
class _Drafted:
    """[n] positions with drafted tokens for which a formula gives the acceptance probability."""

    contexts: NDArray[np.int64]
    accepted: NDArray[np.bool_]
    chance: Floats


def acceptance(requests: Sequence[RequestRecord], buckets: Sequence[Bucket], confidence: float) -> Measures:
    """Accepted tokens against the probability that p, q and the rule give, by the context of each."""
    parts = [_drafted(request) for request in requests]
    contexts, accepted, chance = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("contexts", "accepted", "chance")
    )
    places = {item: item.has(contexts) for item in buckets}
    return {item: _acceptance(item.name, accepted[at], chance[at], confidence) for item, at in places.items()}


def _drafted(request: RequestRecord) -> _Drafted:
    made = decisions(request)
    chance = expected_acceptance(made)
    kept = ~np.isnan(chance)
    return _Drafted(contexts_of(request)[kept], np.asarray(made.role[kept] == Role.ACCEPTED), chance[kept])


def _acceptance(name: str, accepted: NDArray[np.bool_], chance: Floats, confidence: float) -> Measure:
    if not len(accepted):
        return Measure(Kind.ACCEPTANCE, 0)
    test = bernoulli_test(accepted, chance, confidence)
    effect = (test.observed - test.expected) / test.n
    component = ComponentTest("accepted ~ p, q and the rule", name, test.n, test.z, test.p, effect, "acceptance rate")
    return Measure(Kind.ACCEPTANCE, test.n, effect, max(abs(test.low), abs(test.high)), (component,))


def kinds_of(protocol: Protocol, cold: bool) -> tuple[Kind, ...]:
    """Measures of an arm, by rule; `cold` at temperature 0."""
    if cold or protocol is Protocol.GUMBEL:
        return (Kind.EQUALITY,)
    # the block rule decides on a draft as a whole: no formula by place
    return (Kind.LAW,) if protocol is Protocol.BLOCK else (Kind.LAW, Kind.ACCEPTANCE)
