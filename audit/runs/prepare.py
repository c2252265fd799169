"""Validates a run before it begins: models, arms, requests.

Loads the models and builds every arm, so that mistakes surface before anything is written. Generates nothing.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from audit.errors import CannotDecide, UserError
from audit.evidence.environment import Environment, actor, environment
from audit.evidence.records import ArmKind, ArmRecord, Level
from audit.runs.arms import Arm, compares_anyway, plan_arms, repeated_slots, slots
from audit.runs.interim_looks import STOP_RULE, RunStopRule
from audit.runs.readings import can_read, promises_chains, reading
from audit.runs.recorded_arms import JUDGED
from audit.runs.reused_baseline import PLAIN, ReusedRun
from audit.runs.shard import SHARD, Shard
from audit.store import ArtifactRef, NewArm, NewRun, RequestKey, RunReason
from audit.store.writing.contents import KEY, OFF
from audit.suite.access import require_allowed
from audit.suite.allowances import NOTHING, Allowances
from audit.suite.prompts import RequestSlot, following
from audit.suite.spec import Case, Suite
from audit.suite.structured import sampling_of
from engine.backends import REGISTRY, open_backend
from engine.backends.engine_spec import Backend, EngineSpec, ModelFacts
from engine.backends.interface import Engine, Prompt, Starting
from engine.backends.neighbour import Beside, Mixed, NeighbourEngine, contrasting
from engine.core.errors import EngineError, NumericsRefused
from engine.core.types import Request, SamplingParams, ToolOffer
from engine.record.effective import Effective


@dataclass(frozen=True, slots=True)
class PreparedArm:
    """An arm with its engine and its requests by key."""

    planned: Arm
    engine: Engine
    requests: Mapping[RequestKey, Request]
    cases: Mapping[str, Case]
    """The cases of the requests by id."""

    def domain(self, case_id: str) -> str:
        """The domain of a case."""
        return self.cases[case_id].domain

    @property
    def effective(self) -> Effective:
        """The effective configuration of the engine's decoding, or of its pass over given tokens."""
        kind = self.planned.kind
        return reading(kind, self.engine).config() if kind.reads else self.engine.effective_config()

    @property
    def level(self) -> Level:
        """The evidence level of the records; reading samples nothing, so it shows rows but no random numbers."""
        level = Level(self.engine.evidence_level())
        return min(Level.L2, level) if self.planned.kind.reads else level


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run that is ready to begin."""

    suite: Suite
    arms: tuple[PreparedArm, ...]
    models: tuple[ModelFacts, ...]
    environment: Environment
    shard: Shard | None = None
    """The part of the whole run that `arms` has the requests of; None for a whole run."""


def prepare(suite: Suite, earlier: ReusedRun | None = None, allowed: Allowances = NOTHING) -> PreparedRun:
    """Load and check everything that the suite names; an `earlier` run supplies the plain arms.

    Raises:
        UserError: the suite would touch more than is allowed, a model cannot be loaded, a request cannot be served, or
            the earlier run lacks a request.
        CannotDecide: the suite requires a numerics mode that does not hold on this machine.
    """
    require_allowed(suite, allowed)
    with _user_errors(suite):
        backend = open_backend(suite.backend, suite.models)
        models = backend.models()
        if earlier is not None:
            earlier.require_models(models)
        return PreparedRun(suite, build_arms(suite, backend, earlier), models, environment())


def require_engines(prepared: PreparedRun, say: Callable[[str], None] = lambda _line: None) -> None:
    """Read every arm's effective configuration, which starts an engine that has its own processes.

    A run reads it too; this call comes before a store is created. Engines keep what they reported. `say` receives a
    line before each start.

    Raises:
        UserError: an engine cannot be started.
        CannotDecide: the suite requires a numerics mode that does not hold on this machine.
    """
    with _user_errors(prepared.suite):
        for arm in prepared.arms:
            engine = arm.engine.starts() if isinstance(arm.engine, Starting) else None
            if engine is not None:
                say(f"starting {engine} for arm {arm.planned.name}")
            _ = arm.effective


def build_arms(suite: Suite, backend: Backend, earlier: ReusedRun | None = None) -> tuple[PreparedArm, ...]:
    """Build every arm of the suite with its engine and its requests, in run order.

    Raises:
        EngineError: an arm cannot be built, or a request cannot be served.
        UserError: the earlier run lacks a plain arm.
    """
    built = [(planned, _backend(backend, planned, earlier)) for planned in plan_arms(suite)]
    # checks that need a reading arm report a missing one themselves
    possible = [(planned, engine) for planned, engine in built if _can_run(suite, planned, engine)]
    return tuple(_prepare_arm(suite, planned, engine) for planned, engine in possible)


def _backend(backend: Backend, planned: Arm, earlier: ReusedRun | None) -> Engine:
    engine = backend.arm(planned.plan)
    if earlier is not None and planned.kind in PLAIN:
        return earlier.engine(planned.name, engine)
    return with_company(engine, planned.plan, planned.sampling)


def with_company(engine: Engine, plan: EngineSpec, sampling: SamplingParams) -> Engine:
    """The engine with an arm's neighbours; one that learns from its requests gets only those that a suite asks for."""
    if plan.beside is not None:
        return NeighbourEngine(engine, Beside(plan.beside, plan.cancel_beside))
    if not plan.mixed or engine.memory() is not None:
        return engine
    return NeighbourEngine(engine, Mixed(plan.rows, contrasting(sampling)))


@contextlib.contextmanager
def _user_errors(suite: Suite) -> Iterator[None]:
    """Convert an engine's errors to one-line errors for the user."""
    try:
        yield
    except NumericsRefused as error:
        raise CannotDecide(f"{suite.path}: {error}") from error
    except EngineError as error:
        raise UserError(f"{suite.path}: {error}") from error


def _can_run(suite: Suite, planned: Arm, engine: Engine) -> bool:
    if not planned.kind.reads:
        return True
    if not can_read(planned.kind, engine):
        return False
    # `numerics: auto` may end with a mode that promises less than the backend declares
    forced = any(compares_anyway(spec) for spec in suite.arms if spec.name == planned.of)
    return planned.kind is not ArmKind.REREAD or forced or promises_chains(reading(planned.kind, engine).config())


def _prepare_arm(suite: Suite, planned: Arm, engine: Engine) -> PreparedArm:
    requests = _requests(suite, planned, _prompts(suite, engine), slots(suite, planned))
    engine.require([*requests.values(), *_longest_turns(suite, planned, engine)])
    return PreparedArm(planned, engine, requests, {case.id: case for case in suite.cases})


def _longest_turns(suite: Suite, planned: Arm, engine: Engine) -> Iterator[Request]:
    """The last turn of each session, with room for all answers in its own."""
    for case in suite.cases if planned.kind.keeps_sessions else ():
        last, count = case, len(case.turns)
        while last.turns:
            last = following(last, "")
        if count:
            sampling = replace(planned.sampling, max_new_tokens=(1 + count) * planned.sampling.max_new_tokens)
            yield Request(f"{case.id}, its last turn", engine.encode(_prompt(last)), sampling)


def next_turns(suite: Suite, arm: PreparedArm, load: Callable[[str], ArmRecord]) -> PreparedArm | None:
    """The arm with the turns that follow its requests in place of these; None if no session goes on.

    A request without an answer ends its session.
    """
    going = {(key.case_id, key.sample) for key in arm.requests if arm.cases[key.case_id].turns}
    if not going or not arm.planned.kind.keeps_sessions:
        return None
    record = load(arm.planned.along or arm.planned.name)
    answers = [item for item in record.requests if (item.case_id, item.sample) in going]
    turns = [RequestSlot(following(arm.cases[item.case_id], item.text), item.sample) for item in answers]
    cases = {slot.case.id: slot.case for slot in turns}
    prompts = {case.id: arm.engine.encode(_prompt(case)) for case in cases.values()}
    ordered = turns[::-1] if arm.planned.backwards else turns
    return replace(arm, requests=_requests(suite, arm.planned, prompts, ordered), cases=cases) if turns else None


def for_round(suite: Suite, arm: PreparedArm, repetitions: range) -> PreparedArm:
    """The arm with the requests of these repetitions of the suite, from 0: the same cases, new samples and streams."""
    repeated = repeated_slots(suite, arm.planned, repetitions)
    return replace(arm, requests=_requests(suite, arm.planned, _prompts(suite, arm.engine), repeated))


def with_cases(suite: Suite, arm: PreparedArm, cases: Sequence[Case]) -> PreparedArm:
    """The arm with one request of each of these cases, which have tokens, in place of the suite's."""
    engine = arm.engine
    # neighbours of other parameters would take the rows that these requests are to share
    if isinstance(engine, NeighbourEngine) and isinstance(engine.company, Mixed):
        engine = engine.engine
    prompts, asked = {case.id: case.tokens for case in cases}, [RequestSlot(case, 0) for case in cases]
    requests = _requests(suite, arm.planned, prompts, asked)
    return replace(arm, requests=requests, cases={case.id: case for case in cases}, engine=engine)


def _requests(
    suite: Suite, planned: Arm, prompts: Mapping[str, tuple[int, ...]], asked: Iterable[RequestSlot]
) -> dict[RequestKey, Request]:
    requests = {}
    for slot in asked:
        name = f"{planned.name}/{slot.case.id}#{slot.sample}"
        key = RequestKey(planned.name, slot.case.id, slot.sample)
        sampling = sampling_of(planned.sampling, slot.case, ours=REGISTRY[suite.backend].ours)
        if slot.case.direction is not None:
            sampling = slot.case.direction.applied(sampling)
        requests[key] = Request(name, prompts[slot.case.id], sampling, slot.stream, offer_of(slot.case))
    return requests


def _prompts(suite: Suite, engine: Engine) -> dict[str, tuple[int, ...]]:
    return {case.id: case.tokens or engine.encode(_prompt(case)) for case in suite.cases}


def _prompt(case: Case) -> Prompt:
    return Prompt(case.messages, case.tools, case.prompt, case.tool_choice, case.template)


def offer_of(case: Case) -> ToolOffer | None:
    """The tools that the case offers; None if it has none."""
    return ToolOffer(case.tools, case.tool_choice) if case.tools else None


def run_start(prepared: PreparedRun, rule: RunStopRule | None = None, reason: RunReason | None = None) -> NewRun:
    """The store's record of a new run; every arm's specification includes the stop rule, if any."""
    suite = prepared.suite
    commit = prepared.environment.code.get("commit")
    return NewRun(
        suite_name=suite.name,
        suite_sha256=suite.sha256,
        suite_document=suite.document,
        artifacts=tuple(artifacts(prepared)),
        environment=prepared.environment,
        actor=actor(),
        code_commit=commit if isinstance(commit, str) else None,
        arms=tuple(_arm_start(arm, rule, prepared.shard, text=suite.text) for arm in prepared.arms),
        reason=reason or RunReason(),
    )


def artifacts(prepared: PreparedRun) -> list[ArtifactRef]:
    """The suite, each model, and the target's tokenizer."""
    suite = prepared.suite
    # name the suite by its path, so that the run can be resumed
    ref = ArtifactRef("suite", "suite", str(Path(suite.path).resolve()), None, suite.sha256)
    return [ref, *model_artifacts(prepared.models)]


def model_artifacts(models: Iterable[ModelFacts]) -> Iterator[ArtifactRef]:
    """Each model, the GGUF file that it comes from, and the target's tokenizer."""
    for model in models:
        kind = "target" if model.name == "target" else "draft"
        yield ArtifactRef(kind, model.name, model.source, model.revision, model.sha256, model.manifest)
        file = model.manifest.get("facts", {}).get("gguf_sha256")
        if file:
            yield ArtifactRef("gguf", f"gguf/{model.name}", model.source, None, file)
        if kind == "target" and model.tokenizer_sha256:
            yield ArtifactRef("tokenizer", "tokenizer", model.source, model.revision, model.tokenizer_sha256)


def _arm_start(arm: PreparedArm, rule: RunStopRule | None, shard: Shard | None, *, text: bool) -> NewArm:
    planned, effective = arm.planned, arm.effective
    terms = ({} if rule is None else {STOP_RULE: rule.document()}) | ({} if text else {KEY: OFF})
    part = {} if shard is None else {SHARD: shard.document(planned.name)}
    return NewArm(
        name=planned.name,
        kind=planned.kind,
        level=arm.level,
        spec=_spec(planned) | terms | part,
        effective=effective,
        lossless=bool(effective.lossless),
    )


def plan_spec(plan: EngineSpec) -> dict[str, Any]:
    """An arm's demands on its engine, for the record."""
    return {
        "verifier": plan.protocol.value,
        "verifier_options": dict(plan.verifier_options),
        "proposer": plan.proposer,
        "gamma": plan.gamma,
        "draft": plan.draft,
        "other_drafts": list(plan.others),
        "options": dict(plan.options),
        "rows": plan.rows,
        "record": plan.level.value,
        "fault": plan.fault,
        **({"engine": dict(plan.engine)} if plan.engine else {}),
        **({"beside": plan.beside.document()} if plan.beside else {}),
        **({"cancel_beside": plan.cancel_beside} if plan.cancel_beside else {}),
        **({"mixed": True} if plan.mixed else {}),
        **({"stream": asdict(plan.stream)} if plan.stream else {}),
    }


def _spec(planned: Arm) -> dict[str, Any]:
    requested = planned.spec.requested_record if planned.spec else None
    return {
        **plan_spec(planned.plan),
        **({"requested_record": requested} if requested else {}),
        "sampling": planned.sampling.document() | {"seed": str(planned.sampling.seed)},
        "samples": planned.samples,
        "baseline": planned.baseline,
        "control": planned.control,
        **({"noise": list(planned.noise)} if planned.noise else {}),
        **({"of": planned.of} if planned.of else {}),
        **({} if planned.spec is None else {JUDGED: asdict(planned.spec.judged)}),
    }
