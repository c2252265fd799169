"""The mutation test of the checks: one quantity of one record of a clean arm is changed, and the arm judged again.

A change after which every verdict is as good as before survives: the quantity has no second account there. Columns,
header, facts, text and end of a record are changed, and the engine's statement about the arm; the companions that
follow the record follow the changed one, as they would in a run. Floors of coverage are off, because arms are small.
"""

import copy
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from audit.evidence.coverage.rule import CoverageRule
from audit.evidence.records import ArmRecord
from audit.evidence.verdicts import Verdict
from audit.runs.generate import generations, legible
from audit.runs.in_memory import arm_record, candidate_of, evidence_of, made_by
from audit.runs.judge import judge_arm
from audit.runs.prepare import PreparedArm
from audit.selftest.changes import ChangedValue, changed_columns, changed_documents
from audit.selftest.default_suite import default_suite
from audit.selftest.run_arm import prepared
from audit.selftest.scenarios import COMMON, FAMILIES, SAMPLINGS
from audit.suite.spec import ArmChecks
from engine.core.errors import TraceError
from engine.core.types import FinishReason, Generation, RecordLevel
from engine.faults.interface import Scenario
from engine.record.columns import COLUMNS
from engine.record.effective import Effective
from engine.record.envelope import DAMAGE
from engine.record.trace import decode, encode, header_document, header_of_document

TOKENS: Final = 96
"""Size of an arm; its longest record is the one that is changed."""
LENGTH: Final = 24
"""Longest answer."""
OF_CHANCE: Final = ("law", "prefix_measurable", "acceptance_theory")
"""Checks that need more tokens than the arms have."""


@dataclass(frozen=True, slots=True)
class MutationKind:
    """One kind of arm: a scenario and the level of its record."""

    scenario: Scenario
    level: RecordLevel = RecordLevel.FULL


KINDS: Final[Mapping[str, MutationKind]] = {
    # bundled models are slow and record nothing that scripted ones do not
    **{name: MutationKind(FAMILIES[name]) for name in COMMON},
    "greedy": MutationKind(replace(FAMILIES["chain"], sampling=SAMPLINGS["T=0"])),
    "likeliest tokens": MutationKind(
        replace(FAMILIES["chain"], sampling=SAMPLINGS["T=1, top-p 0.9"]), RecordLevel.TOPK
    ),
}
"""The arms whose records are changed."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change, and the checks whose verdict it made worse; none if it survives, or if judging ended with `error`."""

    quantity: str
    way: str
    noticed: tuple[str, ...] = ()
    error: str = ""

    @property
    def survives(self) -> bool:
        """True if the arm is judged as well as before."""
        return not (self.noticed or self.error)


@dataclass(frozen=True, slots=True)
class MutatedArm:
    """The changes of one arm; `clean` has the verdicts of the unchanged one by check."""

    kind: str
    seed: int
    clean: Mapping[str, str]
    mutations: tuple[Mutation, ...]


@dataclass(frozen=True, slots=True)
class _Changed:
    """`effective` is the arm's changed statement; None if it is the clean one."""

    quantity: str
    way: str
    generation: Generation
    effective: Effective | None = None


@dataclass(frozen=True, slots=True)
class _Run:
    """A clean run: every arm's prepared form and record, and the candidate's generations."""

    arms: tuple[PreparedArm, ...]
    done: Mapping[str, ArmRecord]
    made: tuple[Generation, ...]
    readings: Mapping[str, tuple[Generation, ...]]
    judging: ArmChecks

    @property
    def candidate(self) -> PreparedArm:
        """The judged arm."""
        return candidate_of(self.arms)


def mutate(name: str, seed: int, share: float = 1.0) -> MutatedArm:
    """Change an arm of a kind in every way, or in a random share of them."""
    run = _run(KINDS[name], seed)
    numbers = np.random.default_rng([seed, zlib.crc32(name.encode())])
    victim = max(run.made, key=lambda generation: len(generation.trace))
    clean = _verdicts(run, _Changed("", "", victim))
    mutations: list[Mutation] = []
    for change in _changes(run, victim, numbers):
        made = change() if numbers.random() < share else None
        if made is not None:
            mutations.append(_mutation(run, clean, made))
    return MutatedArm(name, seed, {check: str(verdict) for check, verdict in clean.items()}, tuple(mutations))


def _mutation(run: _Run, clean: Mapping[str, Verdict], change: _Changed) -> Mutation:
    try:
        return Mutation(change.quantity, change.way, _noticed(clean, _verdicts(run, change)))
    except Exception as error:
        # a record may never end the judging: the list says which one did, and the others are still changed
        return Mutation(change.quantity, change.way, error=f"{type(error).__name__}: {error}")


def _run(kind: MutationKind, seed: int) -> _Run:
    sampling = replace(kind.scenario.sampling, max_new_tokens=LENGTH)
    suite = default_suite(replace(kind.scenario, sampling=sampling), None, seed, TOKENS)
    (spec,) = suite.arms
    suite = replace(suite, arms=(replace(spec, record=kind.level),))
    arms = prepared(suite)
    done: dict[str, ArmRecord] = {}
    outcomes: dict[str, tuple[Generation, ...]] = {}
    for arm in arms:
        outcomes[arm.planned.name] = tuple(made_by(arm, done))
        done[arm.planned.name] = arm_record(arm, outcomes[arm.planned.name])
    candidate = candidate_of(arms).planned.name
    readings = {arm.planned.name: outcomes[arm.planned.name] for arm in arms if arm.planned.along == candidate}
    checks = {name: given for name, given in spec.judged.checks.items() if name not in OF_CHANCE}
    return _Run(arms, done, outcomes[candidate], readings, ArmChecks(checks, CoverageRule(least=0)))


def _changes(run: _Run, victim: Generation, numbers: np.random.Generator) -> Iterator[Callable[[], _Changed | None]]:
    """Every change of the victim's record and of the arm's statement; None for one that no writer could make, or that
    says the same in other words.
    """
    effective = run.candidate.effective
    trace = decode(victim.trace)
    other = decode(next(item.trace for item in run.made if item.request.id != victim.request.id))
    for name in COLUMNS:
        for way, column in changed_columns(getattr(trace, name), getattr(other, name), numbers):
            yield partial(_with_column, victim, name, way, column)
    for part in changed_documents(json.loads(json.dumps(header_document(trace.header))), numbers):
        yield partial(_with_header, victim, part)
    fields = {"text": victim.text, "finish_reason": victim.finish_reason.value, "latency_us": victim.latency_us}
    yield from (partial(_with_fields, victim, part) for part in changed_documents(fields, numbers))
    document = effective.to_json()
    for part in changed_documents(document, numbers):
        if _stated(part.value) != _stated(document):
            yield partial(_Changed, f"statement: {part.place}", part.way, victim, Effective.from_json(part.value))


def _stated(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys that say something: a null says as little as no key."""
    return {key: value for key, value in document.items() if value is not None}


def _with_column(victim: Generation, name: str, way: str, column: Any) -> _Changed:
    columns: dict[str, Any] = {name: column}
    return _Changed(name, way, replace(victim, trace=encode(replace(decode(victim.trace), **columns))))


def _with_header(victim: Generation, part: ChangedValue) -> _Changed | None:
    trace = decode(victim.trace)
    try:
        header = header_of_document(copy.deepcopy(part.value))
        content = encode(replace(trace, header=header))
    except (*DAMAGE, TraceError):
        return None
    if header == trace.header:
        return None
    return _Changed(f"header: {part.place}", part.way, replace(victim, trace=content))


def _with_fields(victim: Generation, part: ChangedValue) -> _Changed | None:
    text, end, latency = (part.value.get(name) for name in ("text", "finish_reason", "latency_us"))
    if not isinstance(text, str) or not isinstance(latency, int) or end not in list(FinishReason):
        return None
    made = replace(victim, text=text, finish_reason=FinishReason(end), latency_us=latency)
    return _Changed(part.place, part.way, made)


def _verdicts(run: _Run, change: _Changed) -> Mapping[str, Verdict]:
    """The verdicts of the arm with the victim's record replaced, and followed by the companions."""
    arm, done, changed = run.candidate, dict(run.done), change.generation
    if changed not in run.made:
        made = [item if item.request.id != changed.request.id else legible(arm, changed) for item in run.made]
        done[arm.planned.name] = arm_record(arm, made)
        done |= {
            other.planned.name: _reread(run, other, changed, done)
            for other in run.arms
            if other.planned.name in run.readings
        }
    done[arm.planned.name] = replace(done[arm.planned.name], effective=change.effective or arm.effective)
    results = judge_arm(evidence_of(run.arms, done), run.judging).results
    return {name: result.verdict for name, result in results.items()}


def _reread(run: _Run, arm: PreparedArm, changed: Generation, done: Mapping[str, ArmRecord]) -> ArmRecord:
    """The record of a companion that follows the changed record; it reads no other request again."""
    key = next(key for key, request in run.candidate.requests.items() if request.id == changed.request.id)
    asked = [request for place, request in arm.requests.items() if place == key]
    kept = [item for item in run.readings[arm.planned.name] if item.request not in asked]
    return arm_record(arm, [*kept, *generations(arm, asked, done.__getitem__)])


def _noticed(clean: Mapping[str, Verdict], changed: Mapping[str, Verdict]) -> tuple[str, ...]:
    """The checks that call a fault, and those that no longer certify."""
    return tuple(
        name
        for name, verdict in changed.items()
        if verdict is not clean[name] and (verdict is Verdict.FAULT or clean[name] is Verdict.CERTIFIED)
    )
