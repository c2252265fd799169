"""Random streams: no two purposes share numbers, and none is used twice.

Claim: replay. Null: every recorded number is the key's for its purpose and place, and the numbers are independent and
uniform. Statistic: numbers that are not the key's, lie outside [0, 1), or have too few bits (any is a fault); pairs of
bit-identical numbers against the birthday bound; smooth tests by purpose; independence of accept, residual, bonus and
draft numbers of the same decision, of neighbouring acceptance numbers, and of neighbouring requests (Holm). Effect and
bound: the share of numbers that are not the key's, with its 99 % Clopper-Pearson upper bound. Assumes that the engine
used the recorded numbers. Cannot see: noise that is not recorded as numbers (the target's Gumbel noise), dependence of
another form, or weaknesses of the generator. Shares `engine.sampling.rng` with the engine.

Given all earlier draws, each number is uniform on [0, 1), whatever the decisions were. So the product of a centred
number with any earlier quantity has mean 0 and a known variance, and the sum or difference of the two, modulo 1, is
uniform again.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from audit.checks.base.interface import NO_KEY, Check, Design
from audit.checks.base.plans import none_of
from audit.checks.rng_streams.numbers import REJECTION, RecordedNumber, RequestNumbers, numbers_of
from audit.evidence.random_numbers import seed_of, shared_numbers
from audit.evidence.records import ArmRecord, Evidence, Level
from audit.evidence.tally import identical
from audit.evidence.verdicts import POOLED, CheckResult, Finding, Params, Verdict
from audit.stats.binomial import upper_bound
from audit.stats.laws import normal_sf, poisson_sf
from audit.stats.multiplicity import holm
from audit.stats.pit import smooth_test
from audit.stats.power import replay_effect
from engine.core.sequences import grouped
from engine.core.types import Floats, RecordLevel
from engine.record.columns import shape_fault
from engine.record.trace import Trace
from engine.sampling.rng import Purpose

ONCE = "no number twice"
LOSSY = "the verifier declares itself lossy; no protocol says which numbers it draws"
GREEDY = "at temperature 0 nothing is drawn"
BY_NOISE = "every token is decided by the target's noise, which is not recorded; replay draws it again from the key"
MIN_NUMBERS = 30
MIN_FOR_PRECISION = 8
"""This many numbers of 53 bits all end in 20 zeros with probability 2^-160."""
BITS = 53


@dataclass(frozen=True, slots=True)
class NumberTest:
    """One test with its p-value."""

    name: str
    n: int
    statistic: float
    p: float


def significant_bits(values: Floats) -> int:
    """The longest mantissa among `values` [n]: 11 for float16, 24 for float32, 53 for float64."""
    mantissa, _ = np.frexp(values)
    for bits in range(1, BITS):
        scaled = np.ldexp(mantissa, bits)
        if np.all(scaled == np.floor(scaled)):
            return bits
    return BITS


def coincidences(values: Floats) -> NumberTest:
    """Pairs of bit-identical numbers, against the birthday bound at their own precision.

    n numbers of b bits give n (n - 1) / 2^(b + 1) such pairs on average: 5e-5 for a million of 53 bits.
    """
    n = len(values)
    _, counts = np.unique(values, return_counts=True)
    pairs = int(np.sum(counts * (counts - 1) // 2))
    expected = n * (n - 1) / 2.0 ** (1 + significant_bits(values)) if n else 0.0
    return NumberTest("no number twice", n, float(pairs), float(poisson_sf(pairs - 1, expected)) if pairs else 1.0)


def repeated(values: Floats) -> frozenset[float]:
    """The numbers that occur more than once."""
    return frozenset(value for value, count in Counter(values.tolist()).items() if count > 1)


def uniformity(name: str, values: Floats, generator: np.random.Generator) -> Iterator[NumberTest]:
    """The smooth test of one purpose's numbers."""
    if len(values) >= MIN_NUMBERS:
        test = smooth_test(values, generator)
        yield NumberTest(f"{name} uniform", test.n, test.statistic, test.p)


def independence(name: str, first: Floats, second: Floats, generator: np.random.Generator) -> Iterator[NumberTest]:
    """Test that `second` [n] is uniform given `first` [n]."""
    n = len(first)
    if n < MIN_NUMBERS:
        return
    centred = first - 0.5
    variance = float(np.sum(centred**2)) / 12.0
    z = float(np.sum(centred * (second - 0.5))) / math.sqrt(variance) if variance > 0 else 0.0
    yield NumberTest(f"{name}: product", n, z, float(2.0 * normal_sf(abs(z))))
    for sign, word in ((-1.0, "difference"), (1.0, "sum")):
        test = smooth_test(np.mod(second + sign * first, 1.0), generator)
        yield NumberTest(f"{name}: {word}", n, test.statistic, test.p)


def _applies(evidence: Evidence) -> str | None:
    if not evidence.candidate.keyed:
        return NO_KEY
    headers = [request.trace.header for request in evidence.candidate.requests]
    if not all(header.lossless for header in headers):
        return LOSSY
    if headers and all(header.sampling.greedy for header in headers):
        return GREEDY
    # one at a time: traces load lazily, and a list of them would keep every column in memory
    if headers and all(_by_noise(request.trace) for request in evidence.candidate.requests):
        return BY_NOISE
    return None


def _foresee(_params: Params, design: Design) -> str | None:
    if not design.keyed:
        return NO_KEY
    if not design.shown.lossless:
        return LOSSY
    if design.greedy:
        return GREEDY
    return BY_NOISE if design.shown.protocol not in REJECTION else None


def _by_noise(trace: Trace) -> bool:
    """True if neither the rule nor the draft draws a number."""
    return trace.header.protocol not in REJECTION and bool(np.all(np.isnan(trace.node_uniform)))


def _unreadable(arm: ArmRecord) -> str | None:
    for request in arm.requests:
        if request.trace.header.level is RecordLevel.TOKENS:
            return f"request {request.request_id} was recorded at level tokens, numbers need scalars"
        fault = shape_fault(request.trace)
        if fault is not None:
            return f"request {request.request_id}: the record contradicts itself ({fault}); see the replay check"
    return shared_numbers(arm)


def by_purpose(numberses: Sequence[RequestNumbers]) -> dict[Purpose, Floats]:
    """The recorded numbers of each purpose, in order."""
    every = (number for item in numberses for number in item.listed)
    values = grouped((number.purpose, number.value) for number in every if not math.isnan(number.value))
    return {purpose: np.array(listed) for purpose, listed in sorted(values.items())}


def battery(numberses: Sequence[RequestNumbers], generator: np.random.Generator) -> list[NumberTest]:
    """Run all tests for which there are enough numbers."""
    values = by_purpose(numberses)
    tests = [coincidences(np.concatenate([np.empty(0), *values.values()]))]
    for purpose, listed in values.items():
        tests.extend(uniformity(f"{purpose.name.lower()} numbers", listed, generator))
    pairs = grouped((pair.name, (pair.first, pair.second)) for item in numberses for pair in item.pairs)
    pairs["request, next request"] = list(_neighbours(numberses))
    for name, listed_pairs in sorted(pairs.items()):
        first, second = np.array(listed_pairs, dtype=np.float64).reshape(-1, 2).T
        tests.extend(independence(name, first, second, generator))
    return tests


def _neighbours(numberses: Sequence[RequestNumbers]) -> Iterator[tuple[float, float]]:
    """Pairs of the k-th numbers of a purpose in consecutive requests."""
    for one, other in pairwise([by_purpose([item]) for item in numberses]):
        for purpose in one.keys() & other.keys():
            yield from zip(one[purpose].tolist(), other[purpose].tolist(), strict=False)


def _wrong(number: RecordedNumber) -> str | None:
    """Findings that no correct engine can cause; u = 0 has probability 2^-53."""
    if math.isnan(number.value):
        return None
    if not 0.0 < number.value < 1.0:
        return f"{number.title} is {number.value:.10g}, outside (0, 1)"
    if not identical(number.value, number.key):
        return f"{number.title} is {number.value:.10g}, the key gives {number.key:.10g}"
    return None


def _coarse(values: dict[Purpose, Floats], least: int) -> Iterator[Finding]:
    for purpose, listed in values.items():
        bits = significant_bits(listed)
        if len(listed) >= MIN_FOR_PRECISION and bits < least:
            message = f"{len(listed)} {purpose.name.lower()} numbers have {bits} significant bits, {least} are required"
            yield Finding(POOLED, 0, message)


def _twice(arm: ArmRecord, numberses: Sequence[RequestNumbers]) -> Iterator[Finding]:
    """A finding for each repeated number."""
    doubled = repeated(np.concatenate([np.empty(0), *by_purpose(numberses).values()]))
    first: dict[float, str] = {}
    for request, item in zip(arm.requests, numberses, strict=True):
        for number in item.listed:
            if number.value in doubled:
                where = f"{number.title} of {request.request_id}"
                if number.value in first:
                    message = f"{number.title} is also {first[number.value]} ({number.value:.10g})"
                    yield Finding(request.request_id, number.step, message)
                first.setdefault(number.value, where)


def _run(evidence: Evidence, params: Params) -> CheckResult:
    arm = evidence.candidate
    reason = _unreadable(arm)
    if reason is not None:
        return CheckResult(Verdict.INCONCLUSIVE, reason)
    result = [numbers_of(request.trace) for request in arm.requests]
    if not by_purpose(result):
        return CheckResult(Verdict.INCONCLUSIVE, "the record holds no random number that decided something")
    tests = battery(result, np.random.default_rng(seed_of(arm.requests)))
    adjusted = holm([test.p for test in tests])
    rejected = [i for i in np.argsort(adjusted, kind="stable") if adjusted[i] < float(params["alpha"])]
    reused = list(_twice(arm, result)) if 0 in rejected else []
    strange = [
        Finding(request.request_id, number.step, message)
        for request, item in zip(arm.requests, result, strict=True)
        for number in item.listed
        if (message := _wrong(number)) is not None
    ]
    findings = [
        *_coarse(by_purpose(result), int(params["min_bits"])),
        *reused,
        *(_finding(tests[i], float(adjusted[i])) for i in rejected if tests[i].name != ONCE),
        *strange,
    ]
    return _result(result, findings, tests, adjusted, len(strange), params)


def _result(
    numberses: Sequence[RequestNumbers],
    findings: list[Finding],
    tests: list[NumberTest],
    adjusted: Floats,
    strange: int,
    params: Params,
) -> CheckResult:
    values = by_purpose(numberses)
    n = sum(len(listed) for listed in values.values())
    missing = sum(math.isnan(number.value) for item in numberses for number in item.listed)
    bound, margin = upper_bound(min(strange, n), n, float(params["confidence"])), float(params["margin"])
    enough = bound <= margin and not missing
    return CheckResult(
        verdict=Verdict.FAULT if findings else Verdict.CERTIFIED if enough else Verdict.INCONCLUSIVE,
        summary=_summary(findings, n, missing, bound, margin, len(tests)),
        n=n,
        statistic=float(strange),
        p_value=float(adjusted.min()),
        effect=strange / n,
        bound=bound,
        margin=margin,
        detectable=replay_effect(n),
        findings=tuple(findings[: int(params["max_findings"])]),
        details={
            "numbers": {purpose.name.lower(): len(listed) for purpose, listed in values.items()},
            "missing": missing,
            "not_the_keys": strange,
            "significant_bits": {purpose.name.lower(): significant_bits(listed) for purpose, listed in values.items()},
            "tests": [
                {"name": item.name, "n": item.n, "statistic": item.statistic, "p": item.p, "p_adjusted": float(p)}
                for item, p in zip(tests, adjusted, strict=True)
            ],
        },
    )


def _finding(test: NumberTest, adjusted: float) -> Finding:
    return Finding(POOLED, 0, f"{test.name}: statistic {test.statistic:.4g}, adjusted p {adjusted:.2g}, n {test.n}")


def _summary(findings: list[Finding], n: int, missing: int, bound: float, margin: float, tests: int) -> str:
    if findings:
        first = findings[0]
        return f"{len(findings)} faults in {n} numbers; first in {first.request}, step {first.step}: {first.message}"
    text = (
        f"{n} numbers are the key's, none is used twice, no departure in {tests} tests; at most a share of {bound:.3g}"
    )
    if missing:
        return f"{text} is wrong, but {missing} numbers are not recorded"
    return f"{text} is wrong, {'within' if bound <= margin else 'not within'} the margin {margin:g}"


CHECK = Check(
    name="rng_streams",
    claim="replay",
    needs=Level.L4,
    defaults={"margin": 0.01, "confidence": 0.99, "alpha": 0.001, "min_bits": 32, "max_findings": 20},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="every number is the key's for its purpose and place, and none is used twice",
    effect="share of numbers that are not the key's",
    plan=none_of("random numbers", lambda design: not design.greedy),
)
