"""The models of a suite and the engines that run them in processes of their own.

Engines start at an arm's first request; arms over the same models and of the same way of speculating share one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic

from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine
from engine.backends.local_target import LocalTarget, facts_of
from engine.backends.process.arm import ArmModels, M, ProcessEngine
from engine.backends.process.convert import Converted, ModelConverter, WorkFolder, convert, read_converted
from engine.backends.process.engine_process import EngineProgram, Launch, RestartedEngine, interpreter
from engine.backends.process.settings import ProcessSettings
from engine.core.errors import InvalidRequest, ModelError
from engine.models.loading import OpenedSource, open_source


@dataclass(frozen=True, slots=True)
class EngineKind(Generic[M]):
    """One engine: its driver, its settings for a plan, its arms, and its environment variables."""

    program: EngineProgram
    settings: Callable[[EngineSpec], ProcessSettings]
    arm: type[ProcessEngine[M]]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineWanted(Generic[M]):
    """The engine that an arm needs."""

    plan: EngineSpec
    settings: ProcessSettings
    models: ArmModels[M]


class ProcessBackend(Generic[M]):
    """The models of one suite. Raises ModelError: a model that cannot be found."""

    kind: EngineKind[M]
    home: WorkFolder | None = None

    def __init__(self, models: Mapping[str, ModelSource]) -> None:
        self.target = LocalTarget(models["target"])
        self.opened: dict[str, OpenedSource] = {
            name: open_source(source.source, source.revision, source.base) for name, source in models.items()
        }
        self._processes: dict[str, RestartedEngine] = {}

    def models(self) -> tuple[ModelFacts, ...]:
        """Digests and sources by name."""
        return tuple(facts_of(name, opened) for name, opened in self.opened.items())

    def model(self, name: str, settings: ProcessSettings) -> M:
        """One model in the form that the engine loads."""
        raise NotImplementedError

    def job(self, wanted: EngineWanted[M]) -> Mapping[str, Any]:
        """The first message to the driver."""
        raise NotImplementedError

    def arm(self, plan: EngineSpec) -> Engine:
        """An arm; its models are converted now where they need it, its engine starts later.

        Raises:
            InvalidRequest: a combination that the engine cannot run, or no such model.
            ModelError: a model that cannot be converted, a folder of another model, or a draft of another size.
        """
        settings, draft = self.kind.settings(plan), None
        if settings.draft is not None:
            self._require_alike(settings.draft)
            draft = self.model(settings.draft, settings)
        models = ArmModels(self.model("target", settings), draft, self.home)
        process = self._process(settings, {"op": "start", **self.job(EngineWanted(plan, settings, models))})
        return self.kind.arm(plan, self.target, process, settings, models)

    def _require_alike(self, name: str) -> None:
        if name not in self.opened:
            raise InvalidRequest(f"no model named {name!r}; there are: {', '.join(self.opened)}")
        draft, target = self.opened[name], self.opened["target"]
        ours, theirs = (opened.folder.config.get("vocab_size") for opened in (draft, target))
        if ours != theirs:
            raise ModelError(f"{draft.source}: {ours} logits, but the target has {theirs}; use a draft of that size")

    def _process(self, settings: ProcessSettings, job: Mapping[str, Any]) -> RestartedEngine:
        key = f"{settings.python} {dict(job)}"
        if key not in self._processes:
            python = interpreter(settings.python, self.kind.program.name)
            launch = Launch(python, job, settings.start_s, settings.silence_s, self.kind.environment)
            self._processes[key] = RestartedEngine(self.kind.program, launch, settings.restarts)
        return self._processes[key]

    def close(self) -> None:
        """End all engines."""
        for process in self._processes.values():
            process.close()


class ConvertedBackend(ProcessBackend[Converted]):
    """Converted models, each converted once.

    A model for which the arm's settings name no converted folder is converted into a temporary one, in the engine's
    Python, at the first arm that needs it.

    Raises:
        ModelError: a model that cannot be found, or that the engine cannot run.
    """

    converter: ClassVar[ModelConverter]
    home: WorkFolder

    def __init__(self, models: Mapping[str, ModelSource]) -> None:
        super().__init__(models)
        for opened in self.opened.values():
            self.require(opened)
        self.home = WorkFolder(self.converter.kind)
        self._converted: dict[str, Converted] = {}

    def require(self, opened: OpenedSource) -> None:
        """Refuse a model that the engine cannot run. Raises ModelError."""
        self.converter.require(opened)

    def close(self) -> None:
        """End all engines, and remove what was converted."""
        super().close()
        self.home.remove()

    def model(self, name: str, settings: ProcessSettings) -> Converted:
        """A converted model."""
        opened = self.opened[name]
        if name in settings.folders:
            folder = Path(settings.folders[name]).expanduser()
            converted = read_converted(folder)
            if converted.source_sha256 != opened.facts["model_sha256"]:
                raise ModelError(f"{folder}: converted from another model than {opened.source}; convert that one")
            if converted.manifest.get("to") != self.converter.kind:
                raise ModelError(f"{folder}: converted to another format; use audit convert --to {self.converter.kind}")
            return converted
        if name not in self._converted:
            python = interpreter(settings.python, self.converter.program.name)
            self._converted[name] = convert(self.converter, opened, python, self.home.path / name)
        return self._converted[name]
