"""The models of a suite for onnxruntime-genai, and the engines that run them."""

from __future__ import annotations

from collections.abc import Mapping

from engine.backends.converted.models import ArmModels, ConvertedModels, Folders
from engine.backends.converted.processes import RestartedEngine
from engine.backends.converted.settings import ProcessSettings
from engine.backends.engine_process import Launch, interpreter
from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine
from engine.backends.onnxruntime_genai.backend import OrtEngine
from engine.backends.onnxruntime_genai.convert import CONVERTER
from engine.backends.onnxruntime_genai.folder import compose
from engine.backends.onnxruntime_genai.program import PROGRAM
from engine.backends.onnxruntime_genai.settings import settings_of


class OrtBackend:
    """Folders of models, converted ones, and the engines that run.

    Raises:
        ModelError: a model that cannot be found, or that the engine cannot run.
    """

    def __init__(self, models: Mapping[str, ModelSource]) -> None:
        self._models = ConvertedModels(models, CONVERTER)
        self._processes: dict[str, RestartedEngine] = {}

    def models(self) -> tuple[ModelFacts, ...]:
        """Digests and sources by name."""
        return self._models.facts()

    def arm(self, plan: EngineSpec) -> Engine:
        """A backend for one arm; converts its models, and starts its engine later.

        Raises:
            InvalidRequest: a combination that the engine cannot run.
            ModelError: a model that cannot be converted, or a converted folder of another model.
        """
        settings = settings_of(plan)
        models = self._models.of_arm(settings.draft, Folders(settings.python, settings.folders))
        return OrtEngine(plan, self._models.target, self._process(settings, models), settings, models)

    def _process(self, settings: ProcessSettings, models: ArmModels) -> RestartedEngine:
        """Arms over the same models share an engine."""
        key = "-".join((models.key, str(settings.threads), settings.python))
        if key not in self._processes:
            folders = (models.target.folder, models.draft.folder if models.draft else None)
            folder = compose(models.home.new(), *folders, self._models.target.eos_ids, settings.threads)
            python = interpreter(settings.python, PROGRAM.name)
            launch = Launch(python, {"op": "start", "folder": str(folder)}, settings.start_s, settings.silence_s, {})
            self._processes[key] = RestartedEngine(PROGRAM, launch, settings.restarts)
        return self._processes[key]

    def close(self) -> None:
        """End all engines, and remove what was converted."""
        for process in self._processes.values():
            process.close()
        self._models.home.remove()
