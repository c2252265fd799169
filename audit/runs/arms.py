"""From a suite to the arms that run: baselines, noise controls, candidates.

Every distinct set of sampling parameters gets one baseline, the target alone;
where a candidate promises equality, the baseline runs once more one request at
a time, which measures the engine's own numerical noise. Runs nothing itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from audit.checks import load
from audit.errors import UserError
from audit.evidence.records import ArmKind, ArmRecord, Evidence
from audit.suite.spec import CandidateSpec, Case, Suite
from engine.backends import REGISTRY
from engine.backends.engine_spec import EngineSpec
from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.sampling.rng import stream_of

LEVELS = tuple(RecordLevel)
COMPANION_REQUESTS = 16
"""Requests of a companion arm: what it shows is deterministic, or shows in a few."""

ANCHOR_REQUESTS = 1024
"""Requests that an anchor arm reads: a bound of a mean needs many independent ones."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm to run. `baseline` and `control` name other arms; `spec` is a candidate's."""

    name: str
    kind: ArmKind
    plan: EngineSpec
    sampling: SamplingParams
    samples: int
    spec: CandidateSpec | None = None
    baseline: str | None = None
    control: str | None = None
    noise: tuple[str, ...] = ()
    """Further controls (`audit.evidence.records.Evidence.noise`)."""
    backwards: bool = False
    """Its requests come in reverse order."""
    of: str | None = None
    """The candidate that a companion arm belongs to."""
    most: int | None = None
    """At most so many requests, spread evenly over the suite's; None runs all."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One request of an arm: which case, which repetition."""

    case: Case
    sample: int

    @property
    def stream(self) -> int:
        """The random stream: the same in every arm, another for every case and repetition."""
        return stream_of(f"{self.case.id}#{self.sample}")


def slots(suite: Suite, arm: Arm, earlier: int = 0) -> list[Slot]:
    """The arm's requests in order, after `earlier` rounds of as many.

    Greedy arms run each case once, for repetitions would be copies; a case that names its own runs those.
    """
    every = [Slot(case, sample) for case in suite.cases for sample in case.repetitions(arm.samples, earlier)]
    if arm.most is not None and arm.most < len(every):
        every = [every[index * len(every) // arm.most] for index in range(arm.most)]
    return every[::-1] if arm.backwards else every


def require_streams(suite: Suite) -> None:
    """Refuse a suite of which two requests of an arm would draw the same random numbers.

    Pooled tests need independent requests: with shared numbers they reject clean engines or miss faults.

    Raises:
        UserError: the first two such requests.
    """
    first: dict[int, Slot] = {}
    for case in suite.cases:
        for sample in case.repetitions(suite.samples):
            slot = Slot(case, sample)
            other = first.setdefault(slot.stream, slot)
            if other is not slot:
                names = f"{other.case.id}#{other.sample} and {case.id}#{sample}"
                raise UserError(
                    f"{suite.path}: requests {names} would share seed {suite.seed} and stream {slot.stream}; "
                    "give one of the cases another id"
                )


def plan_arms(suite: Suite) -> tuple[Arm, ...]:
    """Baselines, then controls, then the candidates in the suite's order, each with its companions behind it."""
    groups: dict[SamplingParams, list[CandidateSpec]] = {}
    for arm in suite.arms:
        groups.setdefault(arm.sampling, []).append(arm)
    names = _baseline_names(groups, {arm.name for arm in suite.arms})
    baselines, controls, candidates = [], [], {}
    for sampling, arms in groups.items():
        name, level = names[sampling], max((arm.record for arm in arms), key=LEVELS.index)
        baselines.append(_plain(suite, name, ArmKind.BASELINE, sampling, level, suite.batch_size))
        control = f"{name}/alone" if any(_promises_equality(arm) for arm in arms) else None
        if control:
            controls.append(_plain(suite, control, ArmKind.CONTROL, sampling, _control_level(sampling, level), 1))
        noise = _noise(suite, name, sampling, level) if control and not REGISTRY[suite.backend].ours else ()
        controls += noise
        for arm in arms:
            candidates[arm.name] = dataclasses.replace(
                _candidate(suite, arm, name, control), noise=tuple(each.name for each in noise)
            )
    planned = (each for arm in suite.arms for each in _with_companions(candidates[arm.name]))
    return (*baselines, *controls, *planned)


def evidence_for(planned: Arm, listed: Iterable[Arm], record_of: Callable[[str], ArmRecord]) -> Evidence:
    """A candidate's record with those that it is compared to, of all arms that were planned."""
    return Evidence(
        candidate=record_of(planned.name),
        baseline=record_of(planned.baseline) if planned.baseline else None,
        control=record_of(planned.control) if planned.control else None,
        companions={each.kind: record_of(each.name) for each in listed if each.of == planned.name},
        noise=tuple(map(record_of, planned.noise)),
    )


def _with_companions(candidate: Arm) -> Iterator[Arm]:
    """The candidate, then the arms that its checks compare it with."""
    yield candidate
    assert candidate.spec is not None
    asked = {kind for name in candidate.spec.checks for kind in load(name).companions}
    for kind in (kind for kind in ArmKind if kind in asked):
        yield _companion(candidate, kind)


def _companion(candidate: Arm, kind: ArmKind) -> Arm:
    plan = candidate.plan
    if kind is ArmKind.ANCHOR:
        # whole rows only where the candidate has them too; a fault of the candidate is not the reference's
        level = max(plan.level, RecordLevel.TOPK, key=LEVELS.index)
        plan = EngineSpec(_plain_rule(candidate.sampling), rows=1, level=level, engine=plan.engine)
    if kind is ArmKind.ALONE:
        plan = dataclasses.replace(plan, rows=1)
    if kind is ArmKind.OTHER_GAMMA:
        plan = dataclasses.replace(plan, gamma=_other_gamma(plan.gamma))
    return dataclasses.replace(
        candidate,
        name=f"{candidate.name}/{kind}",
        kind=kind,
        plan=plan,
        spec=None,
        baseline=None,
        control=None,
        noise=(),
        backwards=kind is ArmKind.REVERSED,
        of=candidate.name,
        most=ANCHOR_REQUESTS if kind is ArmKind.ANCHOR else COMPANION_REQUESTS,
    )


def _other_gamma(gamma: int) -> int:
    """Half the draft length, or one more where half is none."""
    return gamma // 2 or gamma + 1


def _noise(suite: Suite, name: str, sampling: SamplingParams, level: RecordLevel) -> tuple[Arm, ...]:
    """Another engine's own noise: the baseline as it was, and in another order. Ours has none but by batch."""
    again, other = (
        _plain(suite, f"{name}/{kind}", ArmKind.CONTROL, sampling, _control_level(sampling, level), suite.batch_size)
        for kind in ("again", "reversed")
    )
    return again, dataclasses.replace(other, backwards=True)


def _promises_equality(arm: CandidateSpec) -> bool:
    return arm.sampling.greedy or arm.verifier is Protocol.GUMBEL


def _control_level(sampling: SamplingParams, level: RecordLevel) -> RecordLevel:
    """A greedy control is compared by its margins, which need no whole rows."""
    return min(level, RecordLevel.TOPK, key=LEVELS.index) if sampling.greedy else level


def _baseline_names(groups: Iterable[SamplingParams], taken: set[str]) -> dict[SamplingParams, str]:
    names: dict[SamplingParams, str] = {}
    for sampling in groups:
        base = "baseline/greedy" if sampling.greedy else f"baseline/T={sampling.temperature:g}"
        name, count = base, 1
        while name in taken:
            count += 1
            name = f"{base}-{count}"
        taken.add(name)
        names[sampling] = name
    return names


def _plain(suite: Suite, name: str, kind: ArmKind, sampling: SamplingParams, level: RecordLevel, rows: int) -> Arm:
    """The target alone; sampled by Gumbel-max, so that coupled arms can be compared token by token."""
    plan = EngineSpec(_plain_rule(sampling), rows=rows, level=level, engine=suite.engine)
    return Arm(name, kind, plan, _seeded(suite, sampling), _samples(suite, sampling))


def _plain_rule(sampling: SamplingParams) -> Protocol:
    return Protocol.GREEDY if sampling.greedy else Protocol.GUMBEL


def _candidate(suite: Suite, arm: CandidateSpec, baseline: str, control: str | None) -> Arm:
    plan = EngineSpec(
        protocol=arm.verifier,
        proposer=arm.proposer.kind,
        gamma=arm.proposer.gamma,
        draft=arm.proposer.model,
        options=arm.proposer.options,
        rows=suite.batch_size,
        level=arm.record,
        fault=arm.fault,
        others=arm.proposer.others,
        verifier_options=arm.verifier_options,
        engine={**suite.engine, **arm.engine},
        beside=arm.beside,
    )
    sampling, samples = _seeded(suite, arm.sampling), _samples(suite, arm.sampling)
    return Arm(arm.name, ArmKind.CANDIDATE, plan, sampling, samples, arm, baseline, control)


def _seeded(suite: Suite, sampling: SamplingParams) -> SamplingParams:
    return dataclasses.replace(sampling, seed=suite.seed)


def _samples(suite: Suite, sampling: SamplingParams) -> int:
    return 1 if sampling.greedy else suite.samples
