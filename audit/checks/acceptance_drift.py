"""Acceptance drift: drafts are accepted as often as they were when the pair was recorded.

Claim: acceptance. Null, against the record: the share of drafted tokens that are accepted has not moved by more than
`margin` since it was recorded (`expected`, by stratum: all, a domain, or a range of context lengths; with two or more
recorded domains also their unweighted mean). Statistic and effect: the change in rate; bound: its interval by the
jackknife over prompts, combined with the recorded one (MOVER), Bonferroni over strata for a fault. Null, over the run:
each drafted token is kept with the probability that p and q give, from the first request to the last; statistic: the
restartable e-detector over positions in the order of the requests, whose alarm at `alpha` over the number of positions
has at most probability `alpha`; needs rows. Assumes independent prompts of the same mix as the recorded ones (the mean
over domains: within each domain). Drift says that draft or target changed, not that the output is wrong. Cannot see: a
change that keeps the rate; without an `expected` rate, a change that was present from the first request and fits p and
q.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.checks.base.interface import Check, Design
from audit.checks.base.ranges import CONFIDENCE
from audit.errors import UserError
from audit.evidence.acceptance import expected_acceptance
from audit.evidence.decisions import decisions, unreadable
from audit.evidence.records import Evidence, Level, RequestRecord
from audit.evidence.verdicts import POOLED, CheckResult, Finding, NoEvidence, Params, Verdict
from audit.stats.acceptance import drift
from audit.stats.clusters import ClusterInterval, mean_of_strata, ratio_interval
from audit.stats.equivalence import EquivalenceDecision
from audit.stats.laws import normal_ppf
from audit.stats.power import detectable_shift
from engine.backends.evidence import Part
from engine.core.types import Floats, Protocol, Role

BUCKETS = (0, 64, 128, 256, 512, 1024, 4096)
"""First context length of each range, in tokens of prompt and answer."""
DOMAIN = "domain "
ALIKE = "domains alike"
"""Name of the unweighted mean over domains. Rates differ far more between domains than within one,
and the mix of a run is random."""
NOTHING_DRAFTED = NoEvidence("nothing was drafted")
NOTHING_RECORDED = "no rate was recorded for this pair"


@dataclass(frozen=True, slots=True)
class DraftSteps:
    """[S] steps with drafts: tokens drafted and accepted, context range, domain and prompt."""

    drafted: Floats
    accepted: Floats
    bucket: NDArray[np.int64]
    domain: NDArray[np.str_]
    prompt: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RateComparison:
    """A recorded rate and the current one. `certain` is at 99 %, `strict` at the level of a fault."""

    name: str
    now: ClusterInterval
    certain: drift.RateChange
    strict: drift.RateChange


def _applies(evidence: Evidence) -> str | None:
    if not any(int(np.sum(request.trace.n_drafted)) for request in evidence.candidate.requests):
        return NOTHING_DRAFTED
    return None


def _foresee(params: Params, design: Design) -> str | None:
    if not design.shown.gives(Part.DRAFTS):
        return NOTHING_DRAFTED
    return None if params["expected"] else NOTHING_RECORDED


def steps(requests: Sequence[RequestRecord]) -> DraftSteps:
    """All steps of an arm with at least one drafted token."""
    cases = sorted({request.case_id for request in requests})
    parts = [_steps(request, cases.index(request.case_id)) for request in requests]
    return DraftSteps(
        drafted=np.concatenate([part.drafted for part in parts]),
        accepted=np.concatenate([part.accepted for part in parts]),
        bucket=np.concatenate([part.bucket for part in parts]),
        domain=np.concatenate([part.domain for part in parts]),
        prompt=np.concatenate([part.prompt for part in parts]),
    )


def _steps(request: RequestRecord, prompt: int) -> DraftSteps:
    trace = request.trace
    owner = np.repeat(np.arange(trace.steps), trace.n_emitted)
    accepted = np.bincount(owner[trace.role == Role.ACCEPTED], minlength=trace.steps).astype(np.float64)
    used = trace.n_drafted > 0
    bucket = np.searchsorted(BUCKETS, trace.position[used], side="right") - 1
    count = int(used.sum())
    return DraftSteps(
        trace.n_drafted[used].astype(np.float64),
        accepted[used],
        bucket.astype(np.int64),
        np.full(count, request.domain),
        np.full(count, prompt, dtype=np.int64),
    )


def names_of(result: DraftSteps) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """The name of every stratum with the mask of its steps."""
    yield "all", np.ones(len(result.drafted), dtype=np.bool_)
    yield from ((f"{DOMAIN}{domain}", result.domain == domain) for domain in sorted(set(result.domain.tolist())))
    for bucket in np.unique(result.bucket):
        end = f" to {BUCKETS[bucket + 1] - 1}" if bucket + 1 < len(BUCKETS) else " and on"
        yield f"context {BUCKETS[bucket]}{end}", result.bucket == bucket


def _run(evidence: Evidence, params: Params) -> CheckResult:
    requests, expected = evidence.candidate.requests, _recorded(params)
    rows = steps(requests)
    alpha = float(params["alpha"])
    rates = {name: _rate(rows, mask, 0.98) for name, mask in names_of(rows)}
    absent = [name for name in expected if name not in rates]
    domains = _domains(expected, rates)
    tests = len(expected) + bool(domains) + 1
    margin = float(params["margin"])
    strata = [
        _against(name, rows, {name: before}, margin, alpha / tests)
        for name, before in expected.items()
        if name in rates
    ]
    strata += [_against(ALIKE, rows, domains, margin, alpha / tests)] if domains else []
    watched = _watched(evidence, alpha / tests)
    findings = [*_findings(strata, margin), *watched.findings]
    verdict = Verdict.FAULT if findings else _verdict(strata, absent) if expected else Verdict.NOT_RUN
    worst = max((max(abs(item.certain.interval.low), abs(item.certain.interval.high)) for item in strata), default=None)
    finite = worst is not None and math.isfinite(worst)
    return CheckResult(
        verdict=verdict,
        summary=_summary(findings, strata, absent, watched, rates),
        n=int(rows.drafted.sum()),
        statistic=watched.peak,
        effect=max((abs(item.certain.change) for item in strata), default=None),
        bound=worst if finite else None,
        margin=margin,
        detectable=_detectable(strata, alpha / tests),
        findings=tuple(findings),
        details={
            "rates": {name: _interval(item) for name, item in rates.items()},
            "changes": {item.name: item.certain.change for item in strata},
            "not_seen": absent,
            "watched_positions": watched.positions,
            "alarms": len(watched.findings),
        },
    )


def _recorded(params: Params) -> dict[str, drift.RecordedRate]:
    """The recorded rates; a mapping of names to `rate`, `low`, `high` and `confidence` (0.99)."""
    result = {}
    for name, entry in params["expected"].items():
        keys = {"rate": None, "low": None, "high": None, "confidence": 0.99}
        given = [entry.get(key, absent) for key, absent in keys.items()] if isinstance(entry, Mapping) else [None]
        if not all(isinstance(item, int | float) for item in given):
            shown = f"acceptance_drift: expected.{name} is {str(entry)[:60]!r}"
            raise UserError(f"{shown}; write {{rate: .., low: .., high: ..}}")
        rate, low, high = (float(entry[key]) for key in ("rate", "low", "high"))
        if not 0.0 <= low <= rate <= high <= 1.0:
            raise UserError(f"acceptance_drift: expected.{name} needs 0 <= low <= rate <= high <= 1")
        confidence = float(entry.get("confidence", 0.99))
        if not CONFIDENCE[0] <= confidence <= CONFIDENCE[1]:
            raise UserError(f"acceptance_drift: expected.{name} needs a confidence from 0.5 to below 1")
        result[name] = drift.RecordedRate(rate, low, high, confidence)
    return result


def _rate(result: DraftSteps, mask: NDArray[np.bool_], confidence: float) -> ClusterInterval:
    return ratio_interval(result.accepted[mask], result.drafted[mask], result.prompt[mask], confidence)


def _domains(
    expected: Mapping[str, drift.RecordedRate], rates: Mapping[str, ClusterInterval]
) -> dict[str, drift.RecordedRate]:
    """The recorded domains if there are two or more and the run covers all of them, else none."""
    named = {name: before for name, before in expected.items() if name.startswith(DOMAIN)}
    return named if len(named) > 1 and set(named) <= set(rates) else {}


def _against(
    name: str, result: DraftSteps, recorded: Mapping[str, drift.RecordedRate], margin: float, alpha: float
) -> RateComparison:
    """Compare the current mean over strata with the recorded mean; for a single stratum, its rate."""
    masks = dict(names_of(result))

    def now(confidence: float) -> ClusterInterval:
        parts = [_rate(result, masks[item], confidence) for item in recorded]
        return parts[0] if len(parts) == 1 else mean_of_strata(parts, confidence)

    def change(confidence: float) -> drift.RateChange:
        current, before = now(confidence), [_rescaled(item, confidence) for item in recorded.values()]
        ours = drift.RecordedRate(current.estimate, current.low, current.high, confidence)
        return drift.against_recorded(ours, before[0] if len(before) == 1 else drift.mean_recorded(before), margin)

    return RateComparison(name, now(0.98), change(0.98), change(1.0 - alpha))


def _rescaled(before: drift.RecordedRate, confidence: float) -> drift.RecordedRate:
    """The recorded interval converted to another confidence by the normal law."""
    times = float(normal_ppf(0.5 + confidence / 2) / normal_ppf(0.5 + before.confidence / 2))
    low, high = (before.estimate + times * (end - before.estimate) for end in (before.low, before.high))
    return drift.RecordedRate(before.estimate, low, high, confidence)


@dataclass(frozen=True, slots=True)
class DriftWatch:
    """Result of the detector; `reason` explains why it did not run."""

    positions: int
    peak: float | None
    findings: tuple[Finding, ...]
    reason: str


def _watched(evidence: Evidence, alpha: float) -> DriftWatch:
    arm = evidence.candidate
    header = arm.requests[0].trace.header
    if header.sampling.greedy or header.protocol in (Protocol.GREEDY, Protocol.BLOCK) or not header.lossless:
        return DriftWatch(0, None, (), "acceptance has no law by position under this rule")
    reason = f"evidence {arm.level.name} has no p and q" if arm.level < Level.L3 else unreadable(arm)
    if reason is not None:
        return DriftWatch(0, None, (), reason)
    flags, chances = [], []
    places: list[tuple[str, int]] = []
    for request in arm.requests:
        made = decisions(request)
        chance = expected_acceptance(made)
        kept = np.flatnonzero(~np.isnan(chance))
        flags.append(made.role[kept] == Role.ACCEPTED)
        chances.append(chance[kept])
        places.extend((request.request_id, int(made.step[i])) for i in kept)
    if not places:
        return DriftWatch(0, None, (), "no drafted token has a known acceptance probability")
    # at 1 / alpha the mean time to an alarm is 1 / alpha positions: dividing by their number bounds any alarm at all
    state = drift.extend(drift.detector(alpha / len(places)), np.concatenate(flags), np.concatenate(chances))
    return DriftWatch(len(places), state.peak, tuple(_alarm(alarm, places) for alarm in state.alarms), "")


def _alarm(alarm: drift.Alarm, places: Sequence[tuple[str, int]]) -> Finding:
    request, step = places[alarm.index]
    since = places[alarm.since]
    message = (
        f"acceptance left what p and q give, log odds by {alarm.shift:+g}, "
        f"since about request {since[0]} step {since[1]}, alarm after {alarm.index + 1} positions"
    )
    return Finding(request, step, message)


def _findings(strata: Sequence[RateComparison], margin: float) -> list[Finding]:
    return [
        Finding(POOLED, 0, f"{_change(item, item.strict)}, outside of the margin {margin:g}")
        for item in strata
        if item.strict.decision is EquivalenceDecision.FAULT
    ]


def _change(comparison: RateComparison, change: drift.RateChange) -> str:
    ends = f"[{change.interval.low:+.3f}, {change.interval.high:+.3f}]"
    rate = f"{comparison.now.estimate:.3f} of drafted tokens accepted"
    return f"{comparison.name}: {rate}, changed by {change.change:+.3f} {ends}"


def _verdict(strata: Sequence[RateComparison], absent: Sequence[str]) -> Verdict:
    held = (
        bool(strata) and not absent and all(item.certain.decision is EquivalenceDecision.CERTIFIED for item in strata)
    )
    return Verdict.CERTIFIED if held else Verdict.INCONCLUSIVE


def _detectable(strata: Sequence[RateComparison], alpha: float) -> float | None:
    spread = max((item.now.se for item in strata), default=math.inf)
    return detectable_shift(alpha / 2) * spread if math.isfinite(spread) else None


def _rates_text(rates: Mapping[str, ClusterInterval]) -> str:
    every = rates["all"]
    return f"{every.estimate:.3f} of drafted tokens accepted over {every.clusters} prompts"


def _summary(
    findings: Sequence[Finding],
    strata: Sequence[RateComparison],
    absent: Sequence[str],
    watched: DriftWatch,
    rates: Mapping[str, ClusterInterval],
) -> str:
    if findings:
        return f"{len(findings)} departures; {findings[0].message}"
    sentences = [_change(item, item.certain) for item in strata] or [f"{_rates_text(rates)}; {NOTHING_RECORDED}"]
    if absent:
        sentences.append(f"recorded but not seen: {', '.join(absent)}")
    watch = f"no change over {watched.positions} positions" if watched.positions else f"not watched: {watched.reason}"
    return "; ".join([*sentences, watch])


def _interval(interval: ClusterInterval) -> dict[str, Any]:
    low, high = (end if math.isfinite(end) else None for end in (interval.low, interval.high))
    return {"rate": interval.estimate, "low": low, "high": high, "prompts": interval.clusters}


CHECK = Check(
    name="acceptance_drift",
    claim="acceptance",
    defaults={"expected": {}, "margin": 0.05, "alpha": 0.001},
    run=_run,
    applies=_applies,
    foresee=_foresee,
    null="the acceptance rate is the recorded one, and is what p and q give from the first request to the last",
    effect="change in the share of drafted tokens that are accepted",
    accept=_recorded,
)
