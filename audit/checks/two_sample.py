"""Two samples: the candidate's answers look like the baseline's, from tokens alone.

Claim: text. Null: given the prompt, an answer of the candidate and one of the baseline have the same law. Statistic:
MMD with the Hamming and with a spectrum kernel, chi-square of bigrams, total variation of first tokens, each with a
permutation p-value that moves whole answers between the arms within a prompt; Holm-adjusted. Needs two answers per
prompt and arm, independent of each other: arms that share their random numbers are refused (protocol gumbel, drafts
coupled to the target's noise, temperature 0; answers that follow the baseline's of the same seed, by a permutation
test), and so are requests that share a stream. Certified does not cover the law: no number of samples bounds a total
variation. It means that the means of four features (length, share of distinct tokens, of repeats, of answers that ended
by themselves) differ by at most `margin`, by two one-sided tests with the prompt as unit (intersection-union). Effect
and bound: the largest of these differences and of their 99 % bounds. Cannot see: faults that leave these statistics
unchanged, such as a small shift per token; see law, which needs a hundredth of the tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.checks.base.interface import Check, Design
from audit.evidence.coverage.groups import EVERY_GROUP
from audit.evidence.random_numbers import seed_of, shared_numbers
from audit.evidence.records import ArmRecord, Evidence, RequestRecord
from audit.evidence.verdicts import POOLED, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.clusters import ClusterInterval, mean_interval
from audit.stats.laws import normal_ppf, t_ppf
from audit.stats.multiplicity import holm
from audit.stats.power import MOST as UNATTAINABLE
from audit.stats.power import POWER, detectable_shift
from audit.stats.sample_size import SampleSize
from audit.stats.two_sample import (
    TwoSampleTest,
    bigram_test,
    first_token_test,
    hamming_test,
    matched_floor,
    matched_p,
    pooled,
    spectrum_test,
)
from engine.core.sequences import agreeing, grouped
from engine.core.types import FinishReason, Floats, Protocol

TESTS = {"hamming": hamming_test, "spectrum": spectrum_test, "bigrams": bigram_test, "first token": first_token_test}
FEATURES = ("length", "distinct tokens", "repeats", "ended by itself")
MOST = 64
"""Answers per prompt and arm; kernels grow with the square."""
SPREAD = 0.4
"""Standard deviation of one answer's feature that a plan expects: at most 0.5, if half of them end by themselves."""
ERROR = 0.01
"""Of each one-sided test of a feature."""
SAME = 0.0002
"""Error probability of the guard against arms that share their numbers; thirteen prompts of two answers reach it."""


@dataclass(frozen=True, slots=True)
class ArmSamples:
    """Both arms' answers to the prompts with two or more answers in each arm; `ours` is the candidate's."""

    ours: tuple[RequestRecord, ...]
    theirs: tuple[RequestRecord, ...]
    prompts: tuple[str, ...]


GREEDY = "at temperature 0 there is no law to compare; see greedy_equality"
SHARED = "the arms share their random numbers and are no independent samples; see coupled_equality or same_seed"


def _applies(evidence: Evidence) -> str | None:
    if evidence.baseline is None:
        return NoEvidence("there is no baseline arm to compare with")
    headers = [request.trace.header for request in evidence.candidate.requests]
    if any(header.sampling.greedy for header in headers):
        return GREEDY
    coupled = any(header.protocol is Protocol.GUMBEL or header.coupled_draft for header in headers)
    return SHARED if coupled and _keys(evidence.candidate) & _keys(evidence.baseline) else None


def _foresee(_params: Params, design: Design) -> str | None:
    if design.greedy:
        return GREEDY
    return SHARED if design.shown.protocol is Protocol.GUMBEL else None


def _plan(params: Params, design: Design) -> SampleSize | None:
    """Requests until the intervals of a clean arm's features are within the margin: two a prompt at least."""
    if design.greedy:
        return None
    margin, least = float(params["margin"]), int(params["min_prompts"])
    answers = max(2, design.requests // max(1, design.prompts))
    # a difference of two means over n answers in all has four times an answer's variance over n
    spread = design.assumed.spread or 2.0 * SPREAD
    errors = float(t_ppf(1.0 - ERROR, max(1, design.prompts - 1)) + normal_ppf((1.0 + POWER) / 2.0))
    units = math.ceil(min(UNATTAINABLE, (errors * spread / margin) ** 2 / 2.0))
    return SampleSize(max(units, 2 * design.prompts, least * answers), "requests", margin, ERROR, POWER)


def _keys(arm: ArmRecord) -> set[tuple[int, int]]:
    """The keys of the random numbers of an arm's requests."""
    headers = [request.trace.header for request in arm.requests]
    return {(header.sampling.seed, header.stream) for header in headers}


def gather(evidence: Evidence) -> ArmSamples:
    """The comparable answers: prompts with two or more answers in both arms."""
    assert evidence.baseline is not None
    sides = [
        grouped((request.case_id, request) for request in arm.requests)
        for arm in (evidence.candidate, evidence.baseline)
    ]
    prompts = tuple(case for case in sides[0] if case in sides[1] and min(len(side[case]) for side in sides) >= 2)
    ours, theirs = (tuple(item for case in prompts for item in side[case][:MOST]) for side in sides)
    return ArmSamples(ours, theirs, prompts)


def _run(evidence: Evidence, params: Params) -> CheckResult:
    assert evidence.baseline is not None
    problem = shared_numbers(evidence.candidate) or shared_numbers(evidence.baseline)
    if problem is not None:
        return CheckResult(Verdict.INCONCLUSIVE, problem)
    samples = gather(evidence)
    if not samples.prompts:
        return CheckResult(Verdict.INCONCLUSIVE, "no prompt has two answers in both arms; raise the suite's `samples`")
    other = next((case for case in samples.prompts if _prompt(samples.ours, case) != _prompt(samples.theirs, case)), "")
    if other:
        return CheckResult(Verdict.INCONCLUSIVE, f"case {other} has different prompts in the two arms")
    tests = permuted(samples, int(params["permutations"]))
    adjusted = holm([test.p for test in tests.values()])
    alpha, margin = float(params["alpha"]), float(params["margin"])
    result = dict(zip(tests, adjusted, strict=True))
    rejected = [name for name, p in sorted(result.items(), key=lambda pair: pair[1]) if p < alpha]
    features = differences(samples)
    bound = max(max(-feature.low, feature.high) for feature in features.values())
    enough = len(samples.prompts) >= int(params["min_prompts"])
    within = enough and bound <= margin
    tied = same_numbers(samples, claimed=within)
    certified = within and tied is None
    verdict = Verdict.FAULT if rejected else Verdict.CERTIFIED if certified else Verdict.INCONCLUSIVE
    spread = max(feature.se for feature in features.values())
    finite = bool(np.isfinite(bound))
    return CheckResult(
        verdict=verdict,
        summary=_summary(samples, rejected, features, bound, margin) if rejected or tied is None else tied,
        n=len(samples.ours) + len(samples.theirs),
        statistic=float(max(-np.log10(adjusted))),
        p_value=float(adjusted.min()),
        effect=max(abs(feature.estimate) for feature in features.values()),
        bound=bound if finite else None,
        margin=margin,
        detectable=detectable_shift(alpha / 2) * spread if finite else None,
        findings=tuple(_finding(name, tests[name], result[name]) for name in rejected),
        details=_details(tests, result, features, samples),
    )


def _prompt(requests: Sequence[RequestRecord], case: str) -> tuple[int, ...]:
    return next(request.trace.header.prompt for request in requests if request.case_id == case)


def permuted(samples: ArmSamples, permutations: int) -> dict[str, TwoSampleTest]:
    """Every test with its permutation p-value; the answers seed the permutations."""
    generator = np.random.default_rng(seed_of((*samples.ours, *samples.theirs)))
    place = {case: i for i, case in enumerate(samples.prompts)}
    sides = samples.theirs, samples.ours
    given = [([item.tokens for item in side], [place[item.case_id] for item in side]) for side in sides]
    sample = pooled(*given[0], *given[1])
    return {name: test(sample, generator, permutations) for name, test in TESTS.items()}


def differences(samples: ArmSamples) -> dict[str, ClusterInterval]:
    """Candidate minus baseline of each feature's mean within prompts, with 98 % intervals over prompts."""
    place = {case: i for i, case in enumerate(samples.prompts)}
    means = []
    for side in (samples.ours, samples.theirs):
        owner = np.array([place[item.case_id] for item in side])
        values = np.stack([features(item) for item in side])
        means.append(np.stack([values[owner == i].mean(axis=0) for i in range(len(place))]))
    clusters: NDArray[np.int64] = np.arange(len(place), dtype=np.int64)
    change = means[0] - means[1]
    return {name: mean_interval(change[:, k], clusters, 1.0 - 2.0 * ERROR) for k, name in enumerate(FEATURES)}


def features(request: RequestRecord) -> Floats:
    """[4] numbers in [0, 1] of one answer, in the order of `FEATURES`."""
    tokens = np.array(request.tokens)
    count = max(1, len(tokens))
    repeats = float(np.mean(tokens[1:] == tokens[:-1])) if len(tokens) > 1 else 0.0
    ended = float(request.finish_reason is not FinishReason.LENGTH)
    length = min(1.0, len(tokens) / max(1, request.trace.header.sampling.max_new_tokens))
    return np.array([length, len(np.unique(tokens)) / count, repeats, ended])


def same_numbers(samples: ArmSamples, *, claimed: bool) -> str | None:
    """Why the arms seem to share their random numbers, or None; if `claimed`, also why too few answers would show it.

    An independent answer agrees no further with the baseline's of its own seed than with others to its prompt.
    """
    theirs = {request.key: request for request in samples.theirs}
    sides = grouped((one.case_id, one) for one in samples.ours if one.key in theirs).values()
    agreement = [
        np.array([[agreeing(one.tokens, theirs[other.key].tokens) for other in side] for one in side], dtype=np.float64)
        for side in sides
    ]
    pairs = sum(len(block) for block in agreement)
    equal = sum(request.tokens == theirs[request.key].tokens for request in samples.ours if request.key in theirs)
    words = f"{equal} of {pairs} answers equal the baseline's of the same seed"
    if claimed and pairs and matched_floor(agreement) > SAME:
        return f"{words}, too few to tell whether the arms share their random numbers; raise the suite's `samples`"
    if matched_p(agreement, np.random.default_rng(seed_of(samples.ours))) > SAME:
        return None
    return (
        f"{words}, and the others begin alike: the arms share their random numbers, and are no independent samples; "
        "see same_seed"
    )


def _summary(
    samples: ArmSamples, rejected: list[str], mapping: dict[str, ClusterInterval], bound: float, margin: float
) -> str:
    size = f"{len(samples.ours)} answers against {len(samples.theirs)} to {len(samples.prompts)} prompts"
    if rejected:
        return f"{size} differ in: {', '.join(rejected)}"
    worst = max(mapping, key=lambda name: max(-mapping[name].low, mapping[name].high))
    tested = f"{size}: no difference in {len(TESTS)} tests, which is no certificate of the law; "
    within = "within" if bound <= margin else "not within"
    return tested + f"means of {', '.join(FEATURES)} differ by at most {bound:.3g} ({worst}, 99 %), {within} {margin:g}"


def _finding(name: str, test: TwoSampleTest, adjusted: float) -> Finding:
    message = f"{name}: statistic {test.statistic:.4g}, adjusted p {adjusted:.2g}, {test.permutations} permutations"
    return Finding(POOLED, 0, message)


def _details(
    tests: dict[str, TwoSampleTest], adjusted: dict[str, Any], mapping: dict[str, ClusterInterval], samples: ArmSamples
) -> dict[str, Any]:
    def finite(number: float) -> float | None:
        return float(number) if np.isfinite(number) else None

    return {
        "prompts": len(samples.prompts),
        "standard_error": finite(max(item.se for item in mapping.values())),
        "tests": {
            name: {"statistic": test.statistic, "p": test.p, "p_adjusted": float(adjusted[name])}
            for name, test in tests.items()
        },
        "features": {
            name: {"difference": item.estimate, "low": finite(item.low), "high": finite(item.high)}
            for name, item in mapping.items()
        },
    }


CHECK = Check(
    name="two_sample",
    claim="text",
    defaults={"alpha": 0.001, "margin": 0.05, "permutations": 9999, "min_prompts": 8},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="given the prompt, answers of candidate and baseline have the same law",
    effect="largest difference in the mean of a stated feature",
    plan=_plan,
    covers=EVERY_GROUP,
)
