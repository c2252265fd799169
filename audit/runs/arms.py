"""Derives the arms of a suite: baselines, noise controls, candidates.

Every distinct set of sampling parameters gets one baseline, the target alone.
If a candidate promises equality, the baseline also runs one request at a time,
which measures the engine's own numerical noise. This module runs nothing itself.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from audit.checks import load
from audit.evidence.promises import keeps
from audit.evidence.records import ArmKind, ArmRecord, Evidence
from audit.suite.prompts import RequestSlot
from audit.suite.spec import CandidateSpec, Suite
from audit.suite.structured import library_of
from engine.backends import REGISTRY, declared
from engine.backends.engine_spec import EngineSpec
from engine.backends.evidence import ArmSettings
from engine.core.errors import InvalidRequest
from engine.core.sequences import grouped
from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.stream.interface import StreamSpec

LEVELS = tuple(RecordLevel)
OF_REQUESTS: Final = ("request", "adapters")
"""Settings of an engine that change the requests themselves, so that the baseline has them too."""
COMPANION_REQUESTS = 16
"""Requests of a companion arm; few suffice, because its findings are deterministic or appear quickly."""

ANCHOR_REQUESTS = 1024
"""Requests of an anchor arm; a bound on a mean needs many independent ones."""

REDRAFT_REQUESTS = 32
"""Requests of a redraft arm, each of which runs alone; a stale or foreign draft shows in almost every request."""
GOLDEN: Final = (5**0.5 - 1) / 2
"""Multiples of it are spread evenly over [0, 1), modulo 1."""

_MOST_REQUESTS: Final[Mapping[ArmKind, int | None]] = {
    ArmKind.ANCHOR: ANCHOR_REQUESTS,
    ArmKind.REREAD: None,
    ArmKind.REDRAFT: REDRAFT_REQUESTS,
}
"""Kinds of companions with another number of requests than COMPANION_REQUESTS; None runs all."""


@dataclass(frozen=True, slots=True)
class ArmLinks:
    """An arm, and the names of the arms that its checks compare it with (see `Arm`)."""

    name: str
    kind: ArmKind
    baseline: str | None = None
    control: str | None = None
    noise: tuple[str, ...] = ()
    of: str | None = None


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
    """True if the requests run in reverse order."""
    of: str | None = None
    """The candidate that a companion arm belongs to."""
    along: str | None = None
    """The arm whose tokens a reading arm follows."""
    most: int | None = None
    """Maximum number of requests, spread evenly over the suite's; None runs all."""

    @property
    def links(self) -> ArmLinks:
        """The arms that belong to it."""
        return ArmLinks(self.name, self.kind, self.baseline, self.control, self.noise, self.of)


@dataclass(frozen=True, slots=True)
class _Terms:
    """Terms of a baseline and its candidates: the sampling parameters, the filters over the text, and the backend's
    settings of requests.
    """

    sampling: SamplingParams
    stream: StreamSpec | None
    requests: str
    """The settings as a JSON object."""


def _terms(suite: Suite, arm: CandidateSpec) -> _Terms:
    engine = {**suite.engine, **arm.engine}
    shared = {name: engine[name] for name in OF_REQUESTS if name in engine}
    return _Terms(arm.sampling, arm.stream, json.dumps(shared, sort_keys=True))


def slots(suite: Suite, arm: Arm, earlier: int = 0) -> list[RequestSlot]:
    """List the arm's requests in order, for one repetition of the suite after `earlier` ones.

    Greedy arms run each case once, because repetitions would be copies; a case that lists its own samples runs those.
    """
    every = [RequestSlot(case, sample) for case in suite.cases for sample in case.repetitions(arm.samples, earlier)]
    if arm.most is not None and arm.most < len(every):
        every = [every[index] for index in spread(len(every), arm.most)]
    return every[::-1] if arm.backwards else every


def turns_of(arm: Arm, slot: RequestSlot) -> int:
    """Number of requests that an arm makes of a case: its first turn, and those after it."""
    return 1 + len(slot.case.turns) if arm.kind.keeps_sessions else 1


def spread(count: int, most: int) -> list[int]:
    """`most` of `count` indices, one from each of as many equal parts, at unlike places in them: equal strides would
    hit the same row of every batch, or the same sample of every case.
    """
    edges = [index * count // most for index in range(most + 1)]
    parts = pairwise(edges)
    return [begin + int(index * GOLDEN % 1 * (end - begin)) for index, (begin, end) in enumerate(parts)]


def repeated_slots(suite: Suite, arm: Arm, repetitions: range) -> list[RequestSlot]:
    """List the arm's requests of several repetitions in order; every repetition has the size of the first."""
    ordered = reversed(repetitions) if arm.backwards else repetitions
    return [slot for repetition in ordered for slot in slots(suite, arm, repetition)]


def plan_arms(suite: Suite) -> tuple[Arm, ...]:
    """List baselines, controls, then the candidates in the suite's order, each followed by its companions."""
    groups = grouped((_terms(suite, arm), arm) for arm in suite.arms)
    names = _baseline_names(groups, {arm.name for arm in suite.arms})
    baselines, controls, candidates = [], [], {}
    for terms, arms in groups.items():
        name, level = names[terms], max((arm.record for arm in arms), key=LEVELS.index)
        baselines.append(_plain(suite, name, ArmKind.BASELINE, terms, level, suite.batch_size))
        control = f"{name}/alone" if any(_promises_equality(arm) for arm in arms) else None
        if control:
            controls.append(_plain(suite, control, ArmKind.CONTROL, terms, _control_level(terms.sampling, level), 1))
        noise = _noise(suite, name, terms, level) if control and not REGISTRY[suite.backend].ours else ()
        controls += noise
        for arm in arms:
            candidates[arm.name] = dataclasses.replace(
                _candidate(suite, arm, name, control), noise=tuple(item.name for item in noise)
            )
    planned = (other for arm in suite.arms for other in _with_companions(suite, candidates[arm.name]))
    return (*baselines, *controls, *planned)


def evidence_for(arm: ArmLinks, listed: Iterable[ArmLinks], record_of: Callable[[str], ArmRecord]) -> Evidence:
    """Collect a candidate's record and the records of the listed arms that its checks compare it with."""
    candidate = record_of(arm.name)
    # a baseline has the directed requests of every candidate that is compared with it
    own = frozenset(candidate.directed.values())
    return Evidence(
        candidate=candidate,
        baseline=record_of(arm.baseline).keeping(own) if arm.baseline else None,
        control=record_of(arm.control).keeping(own) if arm.control else None,
        companions={item.kind: record_of(item.name) for item in listed if item.of == arm.name},
        noise=tuple(record_of(name).keeping(own) for name in arm.noise),
    )


def _with_companions(suite: Suite, candidate: Arm) -> Iterator[Arm]:
    """Yield the candidate, then the arms that its checks compare it with."""
    yield candidate
    assert candidate.spec is not None
    bits = _worth_reading(suite, candidate)
    # where bits are promised, bitwise compares the rows
    needless = {"row_closeness"} if bits and not compares_anyway(candidate.spec) else set()
    asked = {kind for name in candidate.spec.checks.keys() - needless for kind in load(name).companions}
    if not bits:
        asked -= {ArmKind.REREAD}
    if candidate.plan.proposer is None:
        asked -= {ArmKind.REDRAFT}
    if _promises_equality(candidate.spec):
        # its answers are the baseline's own, which the anchor arm reads
        asked -= {ArmKind.NOISE}
    for kind in (kind for kind in ArmKind if kind in asked):
        yield _companion(candidate, kind)


def _worth_reading(suite: Suite, candidate: Arm) -> bool:
    """False if the target's numerics promise no equal bits: reading again then costs as much as decoding and shows
    nothing, unless `bitwise` is forced.
    """
    assert candidate.spec is not None
    if compares_anyway(candidate.spec):
        return True
    settings = ArmSettings(candidate.plan, candidate.sampling, suite.models["target"])
    try:
        shown = declared(suite.backend).arm(settings)
    except InvalidRequest:
        # building the arm reports the settings that the backend refuses
        return False
    return keeps(shown.promises, shown.shape)


def compares_anyway(spec: CandidateSpec) -> bool:
    """True if the suite asks to compare bits that nothing promises."""
    return bool(spec.checks.get("bitwise", {}).get("force"))


def _companion(candidate: Arm, kind: ArmKind) -> Arm:
    plan = candidate.plan
    if kind in (ArmKind.ANCHOR, ArmKind.NOISE):
        # record full rows only if the candidate does; the reference does not get the candidate's fault
        level = max(plan.level, RecordLevel.TOPK, key=LEVELS.index)
        plan = EngineSpec(_plain_rule(candidate.sampling), rows=1, level=level, engine=plan.engine)
    if kind is ArmKind.REREAD:
        # digests are enough, whole rows show how far two rows are apart; the fault stays behind
        level = plan.level if plan.level is RecordLevel.FULL else RecordLevel.SCALARS
        plan = EngineSpec(_plain_rule(candidate.sampling), rows=1, level=level, engine=plan.engine)
    if kind is ArmKind.REDRAFT:
        # q is compared by whole rows or by the drafted tokens; the fault stays behind
        level = (
            min(plan.level, RecordLevel.SCALARS, key=LEVELS.index) if plan.level is not RecordLevel.FULL else plan.level
        )
        plan = dataclasses.replace(plan, rows=1, mixed=False, beside=None, fault=None, level=level, stream=None)
    if kind is ArmKind.ALONE:
        plan = dataclasses.replace(plan, rows=1, mixed=False)
    if kind is ArmKind.OTHER_GAMMA:
        # one more if half would be 0
        plan = dataclasses.replace(plan, gamma=plan.gamma // 2 or plan.gamma + 1)
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
        along=None if not kind.reads else candidate.baseline if kind is ArmKind.NOISE else candidate.name,
        most=_MOST_REQUESTS.get(kind, COMPANION_REQUESTS),
    )


def _noise(suite: Suite, name: str, terms: _Terms, level: RecordLevel) -> tuple[Arm, ...]:
    """Controls for another engine's noise: the baseline repeated, and in another order. Ours varies only by batch."""
    again, other = (
        _plain(suite, f"{name}/{kind}", ArmKind.CONTROL, terms, _control_level(terms.sampling, level), suite.batch_size)
        for kind in ("again", "reversed")
    )
    return again, dataclasses.replace(other, backwards=True)


def _promises_equality(arm: CandidateSpec) -> bool:
    return arm.sampling.greedy or arm.verifier is Protocol.GUMBEL


def _control_level(sampling: SamplingParams, level: RecordLevel) -> RecordLevel:
    """Greedy controls are compared by margins, which need no full rows."""
    return min(level, RecordLevel.TOPK, key=LEVELS.index) if sampling.greedy else level


def _baseline_names(groups: Iterable[_Terms], taken: set[str]) -> dict[_Terms, str]:
    names: dict[_Terms, str] = {}
    for terms in groups:
        base = "baseline/greedy" if terms.sampling.greedy else f"baseline/T={terms.sampling.temperature:g}"
        name, count = base, 1
        while name in taken:
            count += 1
            name = f"{base}-{count}"
        taken.add(name)
        names[terms] = name
    return names


def _plain(suite: Suite, name: str, kind: ArmKind, terms: _Terms, level: RecordLevel, rows: int) -> Arm:
    """The target alone, sampled by Gumbel-max so that coupled arms can be compared token by token."""
    sampling = terms.sampling
    plan = EngineSpec(
        _plain_rule(sampling),
        rows=rows,
        level=level,
        engine={**suite.engine, **json.loads(terms.requests)},
        stream=terms.stream,
        library=library_of(sampling),
    )
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
        cancel_beside=arm.cancel_beside,
        mixed=_mixed(suite, arm),
        stream=arm.stream,
        library=library_of(arm.sampling),
    )
    sampling, samples = _seeded(suite, arm.sampling), _samples(suite, arm.sampling)
    return Arm(arm.name, ArmKind.CANDIDATE, plan, sampling, samples, arm, baseline, control)


def _mixed(suite: Suite, arm: CandidateSpec) -> bool:
    """Neighbours need a free row, and they take time, which checks of cost measure."""
    timed = any(load(name).claim == "cost" for name in arm.checks)
    return suite.mixed and suite.batch_size > 1 and arm.beside is None and not timed


def _seeded(suite: Suite, sampling: SamplingParams) -> SamplingParams:
    return dataclasses.replace(sampling, seed=suite.seed)


def _samples(suite: Suite, sampling: SamplingParams) -> int:
    return 1 if sampling.greedy else suite.samples
