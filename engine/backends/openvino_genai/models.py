"""The models of a suite for OpenVINO GenAI, and the engines that run them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.backends.converted.models import ArmModels, ConvertedModels, Folders
from engine.backends.converted.processes import RestartedEngine
from engine.backends.converted.settings import ProcessSettings
from engine.backends.engine_process import Launch, interpreter
from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine
from engine.backends.openvino_genai.backend import OpenVinoEngine
from engine.backends.openvino_genai.convert import CONVERTER
from engine.backends.openvino_genai.program import PROGRAM
from engine.backends.openvino_genai.settings import settings_of

PRECISION: Final = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
"""The engine's own choice may be bfloat16, and 8 bits for its cache."""


class OpenVinoBackend:
    """Folders of models, converted ones, and the engines that run.

    Raises:
        ModelError: a model that cannot be found, or that the converter does not know.
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
        return OpenVinoEngine(plan, self._models.target, self._process(settings, models), settings, models)

    def _process(self, settings: ProcessSettings, models: ArmModels) -> RestartedEngine:
        """Arms over the same models and of the same way of speculating share an engine."""
        job = launch_job(settings, models)
        key = f"{settings.python} {job}"
        if key not in self._processes:
            python = interpreter(settings.python, PROGRAM.name)
            launch = Launch(python, job, settings.start_s, settings.silence_s, {})
            self._processes[key] = RestartedEngine(PROGRAM, launch, settings.restarts)
        return self._processes[key]

    def close(self) -> None:
        """End all engines, and remove what was converted."""
        for process in self._processes.values():
            process.close()
        self._models.home.remove()


def launch_job(settings: ProcessSettings, models: ArmModels) -> dict[str, Any]:
    """The first message to the driver."""
    threads = {} if settings.threads is None else {"INFERENCE_NUM_THREADS": settings.threads}
    return {
        "op": "start",
        "target": str(models.target.folder),
        "draft": None if models.draft is None else str(models.draft.folder),
        "lookup": settings.kind == "prompt_lookup",
        "device": "CPU",
        "properties": {**PRECISION, **threads},
        "scheduler": {
            "cache_size": settings.given.get("cache_gb", 1),
            "enable_prefix_caching": settings.given.get("prefix_caching", False),
        },
    }
