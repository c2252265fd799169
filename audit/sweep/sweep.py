"""Measures plain decoding and an arm at several draft lengths, and recommends one.

Uses a suite's own prompts, sampling and batch size. Checks nothing and stores nothing, because a timing is no evidence.

Times of several jobs, interleaved round by round in one process.

A busy machine slows whole rounds, so callers compare jobs of the same round with each other.
"""

import dataclasses
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from audit.errors import UserError
from audit.runs.prepare import PreparedArm, prepare
from audit.suite.access import require_allowed
from audit.suite.allowances import NOTHING, Allowances
from audit.suite.spec import CandidateSpec, Case, Suite
from audit.sweep.choice import MedianInterval, Recommendation, advise, alike, fastest, median_interval, paired
from audit.text.schema_errors import suggestion
from engine.core.errors import EngineError
from engine.core.types import Generation, RecordLevel
from engine.record import trace
from engine.record.cost import Costs, StepTimes, costs, speedup_of, step_times
from engine.record.metrics import Acceptance, acceptance

T = TypeVar("T")

Clock = Callable[[], float]
"""Seconds from an arbitrary start: wall time, or the processor time of this process."""


@dataclass(frozen=True, slots=True)
class TimedJob(Generic[T]):
    """One run of one job: round from 0, seconds by the clock, and what the job returned."""

    round: int
    job: str
    seconds: float
    result: T


def interleaved(
    jobs: Mapping[str, Callable[[], T]], rounds: int, clock: Clock = time.perf_counter
) -> Iterator[TimedJob[T]]:
    """Run every job once as warm-up, then once per round; each round begins with another job.

    Garbage collection runs between jobs, never during one.
    """
    for job in jobs.values():
        job()
    names = list(jobs)
    for index in range(rounds):
        first = index % len(names)
        for name in (*names[first:], *names[:first]):
            yield _timed(index, name, jobs[name], clock)


def _timed(index: int, name: str, job: Callable[[], T], clock: Clock) -> TimedJob[T]:
    gc.collect()
    with _no_garbage_collection():
        began = clock()
        result = job()
        seconds = clock() - began
    return TimedJob(index, name, seconds, result)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


PLAIN: Final = "plain"
RECORD: Final = RecordLevel.TOKENS
"""Record level of every arm, so that recording costs do not affect the comparison."""

Note = Callable[[str], None]
"""Receives progress messages."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Draft lengths, arms (empty: all), rounds and prompts (None: all) to measure, and what the suite may touch."""

    gammas: tuple[int, ...]
    arms: tuple[str, ...] = ()
    rounds: int = 6
    max_prompts: int | None = None
    allowed: Allowances = NOTHING


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One arm at one draft length; rates in tokens per second, speed-ups over plain decoding."""

    gamma: int
    acceptance: Acceptance
    rate: MedianInterval
    speedup: MedianInterval
    costs: Costs
    modelled: float
    """Speed-up by the cost model from tokens per forward, rho and sigma."""


@dataclass(frozen=True, slots=True)
class ArmSweep:
    """One arm's measurement. `config` is its engine's reported configuration at the chosen length."""

    arm: CandidateSpec
    requests: int
    plain: MedianInterval
    points: tuple[SweepPoint, ...]
    choice: Recommendation
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A suite's measurement and its hardware."""

    suite: Suite
    cases: int
    rounds: int
    hardware: Mapping[str, Any]
    arms: tuple[ArmSweep, ...]


@dataclass(frozen=True, slots=True)
class TimedRun:
    """One timed run of all requests."""

    rate: float
    times: StepTimes
    acceptance: Acceptance


Samples = Mapping[str, Sequence[TimedRun]]
"""Timed runs by job, in the order of the rounds."""


def sweep(suite: Suite, options: SweepOptions, note: Note) -> Sweep:
    """Measure the selected arms in turn.

    Raises:
        UserError: an arm is unknown, a model cannot be loaded, or a request cannot be served.
    """
    # before the arms get other names
    require_allowed(suite, options.allowed)
    chosen = _chosen(suite, options.arms)
    cases = thinned(suite.cases, options.max_prompts)
    prepared = prepare(_at_lengths(suite, chosen, cases, options.gammas), allowed=options.allowed)
    arms = {arm.planned.name: arm for arm in prepared.arms}
    try:
        measured = tuple(_sweep_arm(spec, arms, options, note) for spec in chosen)
    except EngineError as error:
        raise UserError(f"{suite.path}: {error}") from error
    wanted, hardware = ("system", "cpu", "torch_cpu", "torch_threads", "gpus"), prepared.environment.hardware
    stated = {key: hardware[key] for key in wanted if key in hardware}
    return Sweep(suite, len(cases), options.rounds, stated, measured)


def thinned(cases: Sequence[Case], most: int | None) -> tuple[Case, ...]:
    """At most `most` cases, spread evenly over the suite's, so that every workload keeps its share."""
    if most is None or most >= len(cases):
        return tuple(cases)
    return tuple(cases[index * len(cases) // most] for index in range(most))


def _chosen(suite: Suite, names: Sequence[str]) -> tuple[CandidateSpec, ...]:
    known = {arm.name: arm for arm in suite.arms}
    for name in names:
        if name not in known:
            raise UserError(f"{suite.path}: no arm named {name!r}; {suggestion(name, list(known))}")
    return tuple(known[name] for name in dict.fromkeys(names)) or suite.arms


def _job(arm: CandidateSpec, gamma: int) -> str:
    return f"{arm.name}/gamma={gamma}"


def _at_lengths(suite: Suite, arms: Sequence[CandidateSpec], cases: tuple[Case, ...], gammas: Sequence[int]) -> Suite:
    """The suite with one arm per selected arm and length."""
    variants = [
        dataclasses.replace(
            arm, name=_job(arm, gamma), proposer=dataclasses.replace(arm.proposer, gamma=gamma), record=RECORD
        )
        for arm in arms
        for gamma in gammas
    ]
    # a neighbour would take part of the measured time
    return dataclasses.replace(suite, cases=cases, arms=tuple(variants), mixed=False)


def _sweep_arm(spec: CandidateSpec, arms: Mapping[str, PreparedArm], options: SweepOptions, note: Note) -> ArmSweep:
    lengths = {gamma: arms[_job(spec, gamma)] for gamma in options.gammas}
    some = next(iter(lengths.values()))
    assert some.planned.baseline is not None
    plain = arms[some.planned.baseline]
    jobs = {PLAIN: plain, **{str(gamma): arm for gamma, arm in lengths.items()}}
    samples = _measure(spec.name, jobs, options.rounds, note)
    rates = {gamma: _rates(samples[str(gamma)]) for gamma in options.gammas}
    best = fastest(rates)
    note(f"{spec.name}: confirming gamma {best}")
    again = _measure(spec.name, {PLAIN: plain, str(best): lengths[best]}, options.rounds, note)
    confirmed = median_interval(paired(_rates(again[str(best)]), _rates(again[PLAIN])))
    return ArmSweep(
        arm=spec,
        requests=len(some.requests),
        plain=median_interval(_rates(samples[PLAIN])),
        points=tuple(point_of(gamma, samples) for gamma in options.gammas),
        choice=Recommendation(advise(confirmed), best, confirmed, alike(rates, best)),
        config=lengths[best].engine.effective_config().to_json(),
    )


def _measure(name: str, arms: Mapping[str, PreparedArm], rounds: int, note: Note) -> Samples:
    samples: dict[str, list[TimedRun]] = {job: [] for job in arms}
    jobs = {job: _generate(arm) for job, arm in arms.items()}
    last = -1
    for timed in interleaved(jobs, rounds):
        if timed.round != last:
            last = timed.round
            note(f"{name}: round {last + 1} of {rounds}")
        samples[timed.job].append(_sample(timed))
    return samples


def _generate(arm: PreparedArm) -> Callable[[], tuple[Generation, ...]]:
    requests = list(arm.requests.values())

    def job() -> tuple[Generation, ...]:
        # forget earlier answers, or a round would draft from those of the last one
        arm.engine.forget()
        return tuple(arm.engine.generate(requests))

    return job


def _sample(timed: TimedJob[tuple[Generation, ...]]) -> TimedRun:
    traces = [trace.decode(item.trace) for item in timed.result]
    tokens = sum(len(item.tokens) for item in timed.result)
    return TimedRun(tokens / timed.seconds, step_times(traces), acceptance(traces))


def _rates(samples: Sequence[TimedRun]) -> list[float]:
    return [sample.rate for sample in samples]


def point_of(gamma: int, samples: Samples) -> SweepPoint:
    """One draft length's figures; costs are medians over rounds, relative to plain decoding in the same round."""
    own, plain = samples[str(gamma)], samples[PLAIN]
    result = [costs(item.times, other.times, gamma) for item, other in zip(own, plain, strict=True)]
    typical = Costs(float(np.median([item.rho for item in result])), float(np.median([item.sigma for item in result])))
    return SweepPoint(
        gamma=gamma,
        acceptance=own[0].acceptance,
        rate=median_interval(_rates(own)),
        speedup=median_interval(paired(_rates(own), _rates(plain))),
        costs=typical,
        modelled=speedup_of(own[0].acceptance.tokens_per_forward, gamma, typical),
    )
