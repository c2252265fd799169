"""Everything that must be right before a run may begin: models, arms, requests.

Loads the models and builds every arm, so that a mistake is found while nothing
has been written. Generates nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from audit.errors import CannotDecide, UserError
from audit.evidence.environment import Environment, actor, environment
from audit.evidence.records import ArmKind, Level
from audit.runs.arms import PlannedArm, plan_arms, slots
from audit.runs.interim_looks import STOP_RULE, StopRule
from audit.runs.reused_baseline import PLAIN, EarlierRun
from audit.store import ArmStart, ArtifactRef, RequestKey, RunStart
from audit.suite.spec import Case, Suite
from engine.backends import open_workshop
from engine.backends.engine_spec import ModelFacts, ModelSource, Workshop
from engine.backends.interface import Anchoring, Backend, Prompt
from engine.backends.neighbour import BesideBackend
from engine.core.errors import EngineError, NumericsRefused
from engine.core.types import Request


@dataclass(frozen=True, slots=True)
class PreparedArm:
    """An arm with its engine and its requests by key."""

    planned: PlannedArm
    backend: Backend
    requests: Mapping[RequestKey, Request]
    domains: Mapping[str, str]
    """Domain by case id."""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run that can begin."""

    suite: Suite
    arms: tuple[PreparedArm, ...]
    models: tuple[ModelFacts, ...]
    environment: Environment


def prepare(suite: Suite, earlier: EarlierRun | None = None) -> PreparedRun:
    """Load and check everything that the suite names; plain arms come from an earlier run, if one is given.

    Raises:
        UserError: a model that cannot be loaded, a request that cannot be served, or one that the earlier run lacks.
        CannotDecide: a numerics mode that the suite asks for and this machine does not keep.
    """
    with _told(suite):
        workshop = open_workshop(suite.backend, sources(suite))
        models = workshop.models()
        if earlier is not None:
            earlier.require_models(models)
        return PreparedRun(suite, build_arms(suite, workshop, earlier), models, environment())


def build_arms(suite: Suite, workshop: Workshop, earlier: EarlierRun | None = None) -> tuple[PreparedArm, ...]:
    """Every arm of the suite with its engine and its requests, in the order in which they run.

    Raises:
        EngineError: an arm that cannot be built, or a request that cannot be served.
        UserError: a plain arm that the earlier run lacks.
    """
    built = [(planned, _backend(workshop, planned, earlier)) for planned in plan_arms(suite)]
    # checks that want an anchor say themselves that there is none
    possible = [(planned, backend) for planned, backend in built if _can_run(planned, backend)]
    return tuple(_prepare_arm(suite, planned, backend) for planned, backend in possible)


def _backend(workshop: Workshop, planned: PlannedArm, earlier: EarlierRun | None) -> Backend:
    backend, beside = workshop.arm(planned.plan), planned.plan.beside
    if earlier is not None and planned.kind in PLAIN:
        return earlier.backend(planned.name, backend)
    return backend if beside is None else BesideBackend(backend, beside)


@contextlib.contextmanager
def _told(suite: Suite) -> Iterator[None]:
    """An engine's refusal as the one line that a user reads."""
    try:
        yield
    except NumericsRefused as error:
        raise CannotDecide(f"{suite.path}: {error}") from error
    except EngineError as error:
        raise UserError(f"{suite.path}: {error}") from error


def _can_run(planned: PlannedArm, backend: Backend) -> bool:
    return planned.kind is not ArmKind.ANCHOR or isinstance(backend, Anchoring)


def effective_config(arm: PreparedArm) -> Mapping[str, Any]:
    """What runs: the engine's decoding, or its reference pass."""
    if arm.planned.kind is ArmKind.ANCHOR:
        assert isinstance(arm.backend, Anchoring)
        return arm.backend.anchor_config()
    return arm.backend.effective_config()


def sources(suite: Suite) -> dict[str, ModelSource]:
    """Where the suite's models come from, by name."""
    return {
        name: ModelSource(
            spec.source, spec.dtype, spec.loader, spec.revision, numerics=spec.numerics, device=spec.device
        )
        for name, spec in suite.models.items()
    }


def _prepare_arm(suite: Suite, planned: PlannedArm, backend: Backend) -> PreparedArm:
    requests = _requests(suite, planned, _prompts(suite, backend), 0)
    backend.require(list(requests.values()))
    return PreparedArm(planned, backend, requests, {case.id: case.domain for case in suite.cases})


def for_round(suite: Suite, arm: PreparedArm, earlier: int) -> PreparedArm:
    """The arm with the requests that it has after `earlier` rounds: the same cases, other samples and streams."""
    return replace(arm, requests=_requests(suite, arm.planned, _prompts(suite, arm.backend), earlier))


def _requests(
    suite: Suite, planned: PlannedArm, prompts: Mapping[str, tuple[int, ...]], earlier: int
) -> dict[RequestKey, Request]:
    requests = {}
    for slot in slots(suite, planned, earlier):
        name = f"{planned.name}/{slot.case.id}#{slot.sample}"
        key = RequestKey(planned.name, slot.case.id, slot.sample)
        requests[key] = Request(name, prompts[slot.case.id], planned.sampling, slot.stream)
    return requests


def _prompts(suite: Suite, backend: Backend) -> dict[str, tuple[int, ...]]:
    """Tokens by case id."""
    return {case.id: case.tokens or backend.encode(_prompt(case)) for case in suite.cases}


def _prompt(case: Case) -> Prompt:
    return Prompt(case.messages, case.tools, case.prompt)


def run_start(prepared: PreparedRun, rule: StopRule | None = None) -> RunStart:
    """What the store is told when the run begins; every arm's specification has the stop rule, if there is one."""
    suite = prepared.suite
    commit = prepared.environment.code.get("commit")
    return RunStart(
        suite_name=suite.name,
        suite_sha256=suite.sha256,
        suite_document=suite.document,
        artifacts=tuple(artifacts(prepared)),
        environment=prepared.environment,
        actor=actor(),
        code_commit=commit if isinstance(commit, str) else None,
        arms=tuple(_arm_start(arm, rule) for arm in prepared.arms),
    )


def artifacts(prepared: PreparedRun) -> list[ArtifactRef]:
    """The suite, each model, and the target's tokenizer."""
    suite = prepared.suite
    # the suite is called by where it was read from, so that the run can be resumed
    found = [ArtifactRef("suite", "suite", str(Path(suite.path).resolve()), None, suite.sha256)]
    for model in prepared.models:
        kind = "target" if model.name == "target" else "draft"
        found.append(ArtifactRef(kind, model.name, model.source, model.revision, model.sha256, model.manifest))
        if kind == "target" and model.tokenizer_sha256:
            found.append(ArtifactRef("tokenizer", "tokenizer", model.source, model.revision, model.tokenizer_sha256))
    return found


def _arm_start(arm: PreparedArm, rule: StopRule | None) -> ArmStart:
    planned, effective = arm.planned, effective_config(arm)
    # a reference pass draws nothing: it shows rows and no random numbers
    level = Level.L2 if planned.kind is ArmKind.ANCHOR else Level(arm.backend.capabilities().level)
    return ArmStart(
        name=planned.name,
        kind=planned.kind,
        level=level,
        spec=_spec(planned) | ({} if rule is None else {STOP_RULE: rule.document()}),
        effective=effective,
        lossless=bool(effective["lossless"]),
    )


def _spec(planned: PlannedArm) -> dict[str, Any]:
    plan = planned.plan
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
        **({"beside": asdict(plan.beside)} if plan.beside else {}),
        "sampling": asdict(planned.sampling) | {"seed": str(planned.sampling.seed)},
        "samples": planned.samples,
        "baseline": planned.baseline,
        "control": planned.control,
        **({"noise": list(planned.noise)} if planned.noise else {}),
    }
