"""The models of a suite for onnxruntime-genai: found and digested here, converted once, loaded by the engines.

A model for which the arm's settings name no converted folder is converted into a temporary one, in the engine's
Python, at the first arm that needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.backends.engine_process import Launch, interpreter
from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine
from engine.backends.local_target import LocalTarget, facts_of
from engine.backends.onnxruntime_genai.backend import OrtEngine, OrtModels
from engine.backends.onnxruntime_genai.convert import Converted, convert, read_converted, require_convertible
from engine.backends.onnxruntime_genai.folder import WorkFolder, compose
from engine.backends.onnxruntime_genai.process import PROGRAM, OrtProcesses
from engine.backends.onnxruntime_genai.settings import OrtSettings, settings_of
from engine.core.errors import InvalidRequest, ModelError
from engine.models.loading import OpenedSource, open_source


class OrtBackend:
    """Folders of models, converted ones, and the engines that run.

    Raises:
        ModelError: a model that cannot be found, or that the engine cannot run.
    """

    def __init__(self, models: Mapping[str, ModelSource]) -> None:
        self._target = LocalTarget(models["target"])
        self._opened: dict[str, OpenedSource] = {
            name: open_source(source.source, source.revision, source.base) for name, source in models.items()
        }
        for opened in self._opened.values():
            require_convertible(opened)
        self._home = WorkFolder()
        self._converted: dict[str, Converted] = {}
        self._processes: dict[str, OrtProcesses] = {}

    def models(self) -> tuple[ModelFacts, ...]:
        """Digests and sources by name."""
        return tuple(facts_of(name, opened) for name, opened in self._opened.items())

    def arm(self, plan: EngineSpec) -> Engine:
        """A backend for one arm; converts its models, and starts its engine later.

        Raises:
            InvalidRequest: a combination that the engine cannot run.
            ModelError: a model that cannot be converted, or a converted folder of another model.
        """
        if plan.draft is not None and plan.draft not in self._opened:
            raise InvalidRequest(f"no model named {plan.draft!r}; there are: {', '.join(self._opened)}")
        settings = settings_of(plan)
        target = self._model("target", settings)
        draft = None if settings.draft is None else self._model(settings.draft, settings)
        if draft is not None:
            self._require_alike(str(settings.draft))
        processes = self._process(settings, target, draft)
        return OrtEngine(plan, settings, self._target, OrtModels(target, draft, self._home), processes)

    def _model(self, name: str, settings: OrtSettings) -> Converted:
        opened = self._opened[name]
        if name in settings.onnx:
            folder = Path(settings.onnx[name]).expanduser()
            converted = read_converted(folder)
            if converted.source_sha256 != opened.facts["model_sha256"]:
                raise ModelError(f"{folder}: converted from another model than {opened.source}; convert that one")
            return converted
        if name not in self._converted:
            python = interpreter(settings.python, PROGRAM.name)
            self._converted[name] = convert(opened, python, self._home.path / name)
        return self._converted[name]

    def _require_alike(self, name: str) -> None:
        draft, target = self._opened[name], self._opened["target"]
        ours, theirs = (each.folder.config.get("vocab_size") for each in (draft, target))
        if ours != theirs:
            raise ModelError(f"{draft.source}: {ours} logits, but the target has {theirs}; use a draft of that size")

    def _process(self, settings: OrtSettings, target: Converted, draft: Converted | None) -> OrtProcesses:
        """Arms over the same models share an engine."""
        key = "-".join(("engine", target.sha256, draft.sha256 if draft else "", str(settings.threads), settings.python))
        if key not in self._processes:
            folders = (target.folder, draft.folder if draft else None)
            folder = compose(self._home.new(), *folders, self._target.eos_ids, settings.threads)
            python = interpreter(settings.python, PROGRAM.name)
            launch = Launch(python, {"op": "start", "folder": str(folder)}, settings.start_s, settings.silence_s, {})
            self._processes[key] = OrtProcesses(launch, settings.restarts)
        return self._processes[key]

    def close(self) -> None:
        """End all engines, and remove what was converted."""
        for process in self._processes.values():
            process.close()
        self._home.remove()
