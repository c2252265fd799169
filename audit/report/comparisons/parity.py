"""Instances of one engine compared: stored runs of one suite, each from a process, build or device of its own.

Arms are compared by name, requests by case and sample. Five comparisons per candidate: acceptance between every two
instances; tokens, and log-probabilities, of each against the first; the trend of acceptance over the requests of each;
and whether it still speculates at its end. `alpha` is the error rate of each of the three tests over all arms, runs and
pairs together. Cannot see: what all instances do alike from the first request on, which each run's checks judge.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from audit.errors import UserError
from audit.evidence.divergence.rerun import Rerun, compare
from audit.evidence.divergence.triage import MIN_NOISE_POSITIONS
from audit.evidence.logprob_changes import FLOOR_TIMES, changes
from audit.evidence.records import ArmKind, ArmRecord, Evidence
from audit.evidence.verdicts import Verdict, worst
from audit.report.comparisons.begun_order import BegunOrder, in_begun_order
from audit.report.comparisons.run_diff import Change, JudgedRun, settings_diff
from audit.stats.acceptance.drift import AcceptanceCounts
from audit.stats.acceptance.instances import IndexTrend, PairChange, index_trend, pair_changes, silent_end
from audit.stats.equivalence import decide
from audit.store import Store, StoredArm, StoredRun
from audit.store.sums.drafts import RequestDrafts
from engine.core.types import Floats, Protocol

SEED: Final = 20261126
"""Of the permutations, so that the same runs give the same p."""
NOTHING: Final = "nobody counted its drafts"


@dataclass(frozen=True, slots=True)
class ParityLimits:
    """Limits of sameness.

    alpha: error rate of each test over everything compared. margin: change of acceptance between instances. drift:
    change of acceptance from the first to the second half of a run. noise: largest change of a log-probability, in
    nats; None to take it from the run's own controls. last: share of the requests that are a run's end.
    """

    alpha: float = 0.01
    margin: float = 0.05
    drift: float = 0.2
    noise: float | None = None
    last: float = 0.1


@dataclass(frozen=True, slots=True)
class ParityResult:
    """One comparison of one arm over all instances; effect and bound are in the comparison's own unit."""

    arm: str
    compared: str
    verdict: Verdict
    n: int
    effect: float | None
    bound: float | None
    limit: float | None
    summary: str


@dataclass(frozen=True, slots=True)
class ParityRun:
    """One instance: its run, how it ended, and the settings that differ from the first instance's."""

    run: str
    exit_code: int | None
    settings: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Parity:
    """The instances, the first one first, and every comparison."""

    runs: tuple[ParityRun, ...]
    limits: ParityLimits
    results: tuple[ParityResult, ...]

    @property
    def exit_code(self) -> int:
        """1 if a comparison found a fault, 3 if one is undecided or none ran, else 0."""
        return {Verdict.FAULT: 1, Verdict.CERTIFIED: 0}.get(worst([one.verdict for one in self.results]), 3)


@dataclass(frozen=True, slots=True)
class ArmInstances:
    """One arm in every instance: names of the runs, arms as stored, records, and the order of its requests."""

    name: str
    runs: tuple[str, ...]
    arms: tuple[StoredArm, ...]
    records: tuple[ArmRecord, ...]
    begun: tuple[BegunOrder, ...]

    @property
    def drafts(self) -> tuple[tuple[RequestDrafts, ...], ...]:
        """Drafts of every instance's requests, in the order in which they began."""
        return tuple(one.requests for one in self.begun)

    @property
    def order(self) -> str:
        """Words on the order, if it is not the one in which requests began."""
        named = any(one.named for one in self.begun)
        return "; requests in the order of their names, because none says when it began" if named else ""

    @property
    def drafted(self) -> tuple[int, ...]:
        """Drafted tokens of every instance."""
        return tuple(sum(one.drafted for one in requests) for requests in self.drafts)


@dataclass(frozen=True, slots=True)
class PlainArms:
    """The first instance's arm of the target alone, and its repetitions, which measure the engine's own noise."""

    baseline: ArmRecord | None
    controls: tuple[ArmRecord, ...]


def run_parity(store: Store, runs: Sequence[str], limits: ParityLimits) -> Parity:
    """Compare two or more runs of a store.

    Raises:
        UserError: fewer than two runs, the same one twice, or no candidate that all have.
        CannotDecide: a record is missing or cannot be decoded.
    """
    if len(set(runs)) != len(runs) or len(runs) < 2:
        raise UserError("parity needs two or more different runs; name them, or start fresh ones with --instances N")
    loaded = [store.load_run(run) for run in runs]
    names = [arm.name for arm in loaded[0].candidates if all(run.arm(arm.name) for run in loaded)]
    if not names:
        own = ", ".join(arm.name for arm in loaded[0].candidates) or "none"
        raise UserError(f"the runs share no candidate arm; {runs[0]} has: {own}")
    arms = [_instances(store, loaded, name) for name in names]
    results = [result for arm in arms for result in _arm(arm, _plain(store, loaded[0], arm.name), limits, len(arms))]
    return Parity(tuple(_runs(store, loaded)), limits, tuple(results))


def _runs(store: Store, runs: Sequence[StoredRun]) -> Iterator[ParityRun]:
    first = JudgedRun(runs[0], store.checks(runs[0].ulid))
    for run in runs:
        differs = settings_diff(first, JudgedRun(run, store.checks(run.ulid))).settings
        yield ParityRun(run.ulid, run.exit_code, differs)


def _instances(store: Store, runs: Sequence[StoredRun], name: str) -> ArmInstances:
    records = tuple(store.load_arm(run.ulid, name).keeping() for run in runs)
    return ArmInstances(
        name,
        tuple(run.ulid for run in runs),
        tuple(arm for run in runs if (arm := run.arm(name)) is not None),
        records,
        tuple(_begun(store, run, record) for run, record in zip(runs, records, strict=True)),
    )


def _begun(store: Store, run: StoredRun, record: ArmRecord) -> BegunOrder:
    together = next(arm.spec.get("rows") for arm in run.candidates if arm.name == record.name)
    workloads = [str(one["name"]) for one in run.suite_document.get("workloads", ())]
    return in_begun_order(store.figures.drafts(run.ulid, record.name).requests, record, together, workloads)


def _arm(arm: ArmInstances, plain: PlainArms, limits: ParityLimits, arms: int) -> Iterator[ParityResult]:
    yield _acceptance(arm, limits, arms)
    yield _tokens(arm, plain)
    yield _logprobs(arm, _noise(plain, limits))
    yield _drift(arm, limits, arms)
    yield _speculating(arm, limits, arms)


def _acceptance(arm: ArmInstances, limits: ParityLimits, arms: int) -> ParityResult:
    def result(verdict: Verdict, summary: str, widest: PairChange | None = None) -> ParityResult:
        change = None if widest is None else widest.change
        effect = None if change is None else abs(change.estimate)
        bound = None if change is None else max(abs(change.low), abs(change.high))
        finite = bound if bound is not None and math.isfinite(bound) else None
        return ParityResult(arm.name, "acceptance", verdict, sum(arm.drafted), effect, finite, limits.margin, summary)

    if not any(arm.drafted):
        return result(Verdict.NOT_RUN, "no instance drafted a token, or nobody counted")
    for run, drafted in zip(arm.runs, arm.drafted, strict=True):
        if not drafted:
            return result(Verdict.FAULT, f"{run} drafted nothing, another instance {max(arm.drafted)} tokens")
    shared = set.intersection(*({one.key for one in requests} for requests in arm.drafts))
    if not shared:
        return result(Verdict.INCONCLUSIVE, "the instances share no request")
    counts = [_counts([one for one in requests if one.key in shared]) for requests in arm.drafts]
    try:
        outcome = pair_changes(counts, limits.alpha / arms)
    except ValueError as error:
        return result(Verdict.INCONCLUSIVE, str(error))
    verdict = worst([Verdict(decide(one.change.low, one.change.high, limits.margin)) for one in outcome])
    widest = max(outcome, key=lambda one: (abs(one.change.estimate), one.change.high - one.change.low))
    ends = f"[{widest.change.low:+.3f}, {widest.change.high:+.3f}]"
    rates = ", ".join(f"{count.accepted.sum() / count.drafted.sum():.3f}" for count in counts)
    words = f"rates {rates}; largest change {widest.change.estimate:+.3f} {ends} from instance {widest.first + 1}"
    return result(verdict, f"{words} to {widest.second + 1} over {widest.change.clusters} prompts", widest)


def _counts(requests: Sequence[RequestDrafts]) -> AcceptanceCounts:
    cases = sorted({one.key.case_id for one in requests})
    return AcceptanceCounts(
        np.array([one.accepted for one in requests], dtype=np.float64),
        np.array([one.drafted for one in requests], dtype=np.float64),
        np.array([cases.index(one.key.case_id) for one in requests], dtype=np.int64),
    )


def _tokens(arm: ArmInstances, plain: PlainArms) -> ParityResult:
    reruns = [_rerun(plain, arm.records[0], other) for other in arm.records[1:]]
    problem = next((one.problem for one in reruns if one.problem), None)
    pairs, tokens = sum(one.pairs for one in reruns), sum(one.tokens for one in reruns)
    differing = [difference for one in reruns for difference in one.differences]
    verdict, words = _equality(arm.records[0], reruns)
    if problem is not None:
        verdict, words = Verdict.INCONCLUSIVE, problem
    elif differing:
        first = differing[0].finding(ArmKind.REPEAT)
        words = f"{words}; first: {first.request} step {first.step}: {first.message}"
    effect = 100.0 * len(differing) / pairs if pairs else None
    return ParityResult(arm.name, "tokens", verdict, tokens, effect, None, None, words)


def _rerun(plain: PlainArms, first: ArmRecord, other: ArmRecord) -> Rerun:
    """The other instance against the first, as the check `seed` compares an arm with its repetition."""
    noise = plain.controls
    evidence = Evidence(other, plain.baseline, noise[0] if noise else None, {ArmKind.REPEAT: first}, noise[1:])
    return compare(evidence, ArmKind.REPEAT)


def _equality(arm: ArmRecord, reruns: Sequence[Rerun]) -> tuple[Verdict, str]:
    kinds = {kind: sum(one.count(kind) for one in reruns) for kind in ("real", "untriaged", "drafts", "numerical")}
    pairs, unpaired = sum(one.pairs for one in reruns), sum(len(one.unpaired) for one in reruns)
    parts = [f"{number} {kind}" for kind, number in kinds.items() if number]
    words = f"{pairs - sum(kinds.values())} of {pairs} answers equal" + (f", {', '.join(parts)}" if parts else "")
    if unpaired:
        words += f", {unpaired} in one instance only"
    if not pairs:
        return Verdict.INCONCLUSIVE, "the instances share no request"
    fixed = arm.keyed or all(request.trace.header.protocol is Protocol.GUMBEL for request in arm.requests)
    if parts and not fixed:
        return Verdict.NOT_RUN, f"{words}; the engine does not promise the tokens of a seed"
    if kinds["real"]:
        return Verdict.FAULT, words
    return (Verdict.INCONCLUSIVE if kinds["untriaged"] or kinds["drafts"] or unpaired else Verdict.CERTIFIED), words


def _plain(store: Store, run: StoredRun, name: str) -> PlainArms:
    arm = run.arm(name)
    spec: Mapping[str, Any] = {} if arm is None else arm.spec
    names = [spec.get("baseline"), spec.get("control"), *spec.get("noise", ())]
    baseline, *controls = [store.load_arm(run.ulid, one).keeping() if one and run.arm(one) else None for one in names]
    return PlainArms(baseline, tuple(one for one in controls if one is not None))


def _noise(plain: PlainArms, limits: ParityLimits) -> float | None:
    """The largest change of a log-probability between two plain arms of the first run, or the stated one."""
    if limits.noise is not None or plain.baseline is None or not plain.controls:
        return limits.noise
    result = [changes(control, plain.baseline, "baseline").value for control in plain.controls]
    values = np.abs(np.concatenate(result))
    return float(values.max()) if len(values) >= MIN_NOISE_POSITIONS else None


def _logprobs(arm: ArmInstances, noise: float | None) -> ParityResult:
    values = np.concatenate([changes(other, arm.records[0], "first").value for other in arm.records[1:]])
    known = np.abs(values[np.isfinite(values)])
    if not len(known):
        return ParityResult(arm.name, "logprobs", Verdict.NOT_RUN, 0, None, None, noise, "no log-probabilities")
    largest = float(known.max())
    stated = "unknown" if noise is None else f"{noise:.3g}"
    words = f"largest difference {largest:.3g} nats at equal prefixes, noise bound {stated}"
    verdict = Verdict.INCONCLUSIVE
    if largest == 0.0 or (noise is not None and largest <= noise):
        verdict = Verdict.CERTIFIED
    elif noise is not None and largest > FLOOR_TIMES * noise:
        verdict = Verdict.FAULT
    return ParityResult(arm.name, "logprobs", verdict, len(known), largest, largest, noise, words)


@dataclass(frozen=True, slots=True)
class _Trend:
    """A trend of one instance: of which ratio, and what was found."""

    instance: int
    of: str
    trend: IndexTrend


def _drift(arm: ArmInstances, limits: ParityLimits, arms: int) -> ParityResult:
    """Two ratios are watched: accepted over drafted, and drafted over emitted tokens, which falls where drafts stop."""
    alpha = limits.alpha / (2 * arms * len(arm.runs))
    drafts = [trend for at, requests in enumerate(arm.drafts) for trend in _trends(at, requests, alpha)]
    n = sum(map(len, arm.drafts))
    if not drafts:
        return ParityResult(arm.name, "drift", Verdict.NOT_RUN, n, None, None, limits.drift, NOTHING)
    lowest = min(drafts, key=lambda one: one.trend.p)
    rates = [one for one in drafts if one.of == "acceptance"]
    widest = max(rates or drafts, key=lambda one: max(abs(one.trend.change.low), abs(one.trend.change.high)))
    bound = max(abs(widest.trend.change.low), abs(widest.trend.change.high))
    if lowest.trend.p <= alpha:
        verdict, shown = Verdict.FAULT, lowest
    else:
        verdict = Verdict.CERTIFIED if rates and bound <= limits.drift else Verdict.INCONCLUSIVE
        shown = widest
    change = shown.trend.change
    words = (
        f"{shown.of} of instance {shown.instance + 1} changes by {change.estimate:+.3f} [{change.low:+.3f}, "
        f"{change.high:+.3f}] from the first to the second half; smallest p {lowest.trend.p:.2g}, alarm at {alpha:.2g}"
    )
    finite = bound if math.isfinite(bound) else None
    return ParityResult(arm.name, "drift", verdict, n, abs(change.estimate), finite, limits.drift, words + arm.order)


def _trends(instance: int, requests: Sequence[RequestDrafts], alpha: float) -> Iterator[_Trend]:
    if not any(one.drafted for one in requests):
        return
    strata, prompts = _places(requests)
    drafted = np.array([one.drafted for one in requests], dtype=np.float64)
    accepted = np.array([one.accepted for one in requests], dtype=np.float64)
    emitted = np.array([one.emitted for one in requests], dtype=np.float64)
    ratios: Mapping[str, tuple[Floats, Floats]] = {"acceptance": (accepted, drafted), "drafting": (drafted, emitted)}
    for number, (name, (counts, of)) in enumerate(ratios.items()):
        generator = np.random.default_rng([SEED, instance, number])
        trend = index_trend(counts, of, strata, prompts, generator, 1.0 - alpha)
        if trend is not None:
            yield _Trend(instance, name, trend)


def _places(requests: Sequence[RequestDrafts]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[n] stratum and prompt of each request: the stratum is its case if every case has samples, else its domain."""
    cases = sorted({one.key.case_id for one in requests})
    domains = sorted({one.domain for one in requests})
    prompts = np.array([cases.index(one.key.case_id) for one in requests], dtype=np.int64)
    if np.bincount(prompts).min() > 1:
        return prompts, prompts
    return np.array([domains.index(one.domain) for one in requests], dtype=np.int64), prompts


def _speculating(arm: ArmInstances, limits: ParityLimits, arms: int) -> ParityResult:
    alpha = limits.alpha / (arms * len(arm.runs))

    def result(verdict: Verdict, summary: str, effect: float | None = None) -> ParityResult:
        n = sum(map(len, arm.drafts))
        return ParityResult(arm.name, "speculating", verdict, n, effect, None, limits.last, summary)

    if not any(arm.drafts):
        return result(Verdict.NOT_RUN, NOTHING)
    verdicts, words = [], []
    for at, requests in enumerate(arm.drafts):
        drafting = np.array([one.drafted > 0 for one in requests if one.emitted > 1], dtype=np.bool_)
        end = silent_end(drafting)
        last = math.ceil(limits.last * end.requests)
        if end.silent == end.requests:
            others = any(arm.drafted)
            verdicts.append(Verdict.FAULT if others else Verdict.INCONCLUSIVE)
            words.append(f"instance {at + 1} never drafts" + (", others do" if others else ""))
        elif end.trailing < last:
            verdicts.append(Verdict.CERTIFIED)
        else:
            verdicts.append(Verdict.FAULT if end.p <= alpha else Verdict.INCONCLUSIVE)
            words.append(f"instance {at + 1}: the last {end.trailing} of {end.requests} have no draft, p {end.p:.2g}")
    words = words or [f"every instance drafts in the last {100 * limits.last:g} % of its requests"]
    return result(worst(verdicts), "; ".join(words) + arm.order)
