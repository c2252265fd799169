"""The engine behind a server, and what its run says about it: from a model and a draft, or from an arm of a suite.

A suite's arm is served with its engine, its rule, its filters and its record level; prompts, sampling parameters and
checks of the suite stay unused, because requests bring their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from audit.errors import CannotDecide, UserError
from audit.evidence.environment import Environment, actor, environment
from audit.evidence.records import ArmKind, Level
from audit.runs.arms import plan_arms
from audit.runs.prepare import model_artifacts, plan_spec
from audit.serve.limits import GAMMA, ROWS
from audit.store import NewArm, NewRun
from audit.store.base.canonical import sha256_json
from audit.store.writing.contents import KEY, OFF
from audit.suite.loader import find_suite, load_suite
from audit.suite.spec import Suite
from engine.backends import REGISTRY, open_backend
from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine, Rereading, Serving
from engine.core.errors import EngineError, NumericsRefused
from engine.core.types import Protocol, RecordLevel
from engine.models.files.folder import is_gguf

ARM: Final = "served"
SUITE: Final = "serve"
INSTEAD: Final = "serve an arm of backend native"
SCORING: Final = EngineSpec(Protocol.GREEDY, rows=1, level=RecordLevel.TOPK)
"""How given texts are read: the record needs the likeliest token of every row."""


@dataclass(frozen=True, slots=True)
class ServeWish:
    """The arm to serve. `name` is the arm's; `document` is the request that the run's record states."""

    name: str
    backend: str
    models: Mapping[str, ModelSource]
    plan: EngineSpec
    document: Mapping[str, Any]
    text: bool = True

    def without_speculation(self) -> ServeWish:
        """The same arm without drafts, and without a fault that was planted in it."""
        plan = replace(self.plan, proposer=None, gamma=0, draft=None, others=(), options={}, fault=None)
        served = {**self.document[SUITE], "speculation": "off"}
        return replace(self, plan=plan, document={**self.document, SUITE: served})


@dataclass(frozen=True, slots=True)
class ServedSource:
    """The source that a command or a plug-in names: a model with its draft, or a suite with an arm."""

    model: str
    draft: str | None = None
    proposer: str | None = None
    gamma: int = GAMMA
    arm: str | None = None
    rows: int | None = None
    record: str = RecordLevel.SCALARS.value
    numerics: str | None = None

    def wish(self) -> ServeWish:
        """The arm to serve. Raises UserError: parts do not fit each other, or the suite has no such arm."""
        # a file, or the name of a packaged suite; a model is a folder, the name of one, or a GGUF file
        if find_suite(self.model).is_file() and not is_gguf(Path(self.model)):
            if self.draft or self.proposer:
                raise UserError("--draft and --proposer belong to a model; the arm of a suite says itself what drafts")
            if self.numerics is not None:
                raise UserError("--numerics is for a model; in a suite, set `numerics` on `models.target`")
            return wish_of_arm(load_suite(self.model), self.arm, self.rows)
        if self.arm is not None:
            raise UserError(
                f"--arm {self.arm}: {self.model} is no suite; write a YAML file or the name of a packaged suite"
            )
        drafting, level = ModelSource(self.draft) if self.draft else None, RecordLevel(self.record)
        target = ModelSource(self.model, numerics=self.numerics)
        return wish_of_models(target, drafting, self.proposer, self.gamma, self.rows or ROWS, level)


def wish_of_models(
    target: ModelSource, draft: ModelSource | None, proposer: str | None, gamma: int, rows: int, level: RecordLevel
) -> ServeWish:
    """A target, and what drafts for it; without a proposer named, a draft model drafts alone.

    The rule is Gumbel-max: an answer then depends on its seed alone, whether tokens are drafted or not.
    """
    kind = proposer or ("draft_model" if draft else None)
    plan = EngineSpec(Protocol.GUMBEL, kind, gamma if kind else 0, "draft" if draft else None, rows=rows, level=level)
    models = {"target": target} | ({"draft": draft} if draft else {})
    backend = "scripted" if target.source.startswith("scripted:") else "native"
    served = {"proposer": kind, "gamma": plan.gamma, "rows": rows, "record": level.value}
    listed = {name: item.source for name, item in models.items()}
    return ServeWish(ARM, backend, models, plan, {"backend": backend, "models": listed, SUITE: served})


def wish_of_arm(suite: Suite, name: str | None, rows: int | None) -> ServeWish:
    """A candidate of a suite: the named one, or the only one.

    Raises:
        UserError: no such arm, or several and none named, or another engine's, whose batch takes no requests.
    """
    if not REGISTRY[suite.backend].ours:
        raise UserError(f"{suite.path}: backend {suite.backend} takes no requests while it runs; {INSTEAD}")
    names = [arm.name for arm in suite.arms]
    if name is None and len(names) > 1:
        raise UserError(f"{suite.path}: it has several arms; name one with --arm: {', '.join(names)}")
    chosen = name or names[0]
    planned = next((arm for arm in plan_arms(suite) if arm.name == chosen and arm.kind is ArmKind.CANDIDATE), None)
    if planned is None:
        raise UserError(f"{suite.path}: no arm {chosen!r}; it has: {', '.join(names)}")
    plan = replace(planned.plan, rows=rows or planned.plan.rows, beside=None, mixed=False, library=None)
    served = {"suite": suite.name, "sha256": suite.sha256, "arm": chosen, "rows": plan.rows}
    document = {"backend": suite.backend, "models": suite.document["models"], SUITE: served}
    return ServeWish(chosen, suite.backend, suite.models, plan, document, suite.text)


@dataclass(frozen=True, slots=True)
class ScoringArm:
    """The arm of a run whose requests are given texts, read by the target alone."""

    name: str
    engine: Engine
    reading: Rereading

    def start(self) -> NewArm:
        """Its part of the run's record."""
        level, config = Level(self.engine.evidence_level()), self.reading.reread_config()
        return NewArm(self.name, ArmKind.REREAD, level, plan_spec(SCORING), config, lossless=True)


@dataclass(frozen=True, slots=True)
class OpenedArm:
    """An arm that can be served. `engine` and `serving` are one object, by its two interfaces."""

    wish: ServeWish
    engine: Engine
    serving: Serving
    models: tuple[ModelFacts, ...]
    environment: Environment
    scoring: ScoringArm | None = None

    @property
    def fingerprint(self) -> str:
        """Digest of the effective configuration, shortened."""
        return f"specaudit-{sha256_json(self.engine.effective_config().to_json())[:12]}"

    def start(self) -> NewRun:
        """The record of the server's run."""
        wish, effective = self.wish, self.engine.effective_config()
        commit = self.environment.code.get("commit")
        spec = plan_spec(wish.plan) | ({} if wish.text else {KEY: OFF})
        level = Level(self.engine.evidence_level())
        return NewRun(
            suite_name=SUITE,
            suite_sha256=sha256_json(wish.document),
            suite_document=wish.document,
            artifacts=tuple(model_artifacts(self.models)),
            environment=self.environment,
            actor=actor(),
            code_commit=commit if isinstance(commit, str) else None,
            arms=(
                NewArm(wish.name, ArmKind.CANDIDATE, level, spec, effective, bool(effective.lossless)),
                *((self.scoring.start(),) if self.scoring else ()),
            ),
        )


def open_arm(wish: ServeWish, *, scoring: bool = False) -> OpenedArm:
    """Load the models and build the engine; with `scoring`, also the arm that reads given texts.

    Raises:
        UserError: a model cannot be loaded, or parts do not fit.
        CannotDecide: a numerics mode that does not hold on this machine.
    """
    try:
        backend = open_backend(wish.backend, wish.models)
        engine = backend.arm(wish.plan)
        reader = backend.arm(SCORING) if scoring else None
    except NumericsRefused as error:
        raise CannotDecide(str(error)) from error
    except EngineError as error:
        raise UserError(str(error)) from error
    assert isinstance(engine, Serving)
    scorer = None
    if isinstance(reader, Rereading):
        scorer = ScoringArm(f"{wish.name}/{ArmKind.REREAD}", reader, reader)
    return OpenedArm(wish, engine, engine, backend.models(), environment(), scorer)
