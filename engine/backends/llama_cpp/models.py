"""The models of a suite for llama.cpp, and the servers that run them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.backends.converted.models import ArmModels, ConvertedModels, Folders
from engine.backends.converted.processes import RestartedEngine
from engine.backends.converted.settings import ProcessSettings
from engine.backends.engine_process import Launch, interpreter
from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine
from engine.backends.llama_cpp.backend import LlamaEngine, caches
from engine.backends.llama_cpp.convert import CONVERTER, MODEL
from engine.backends.llama_cpp.program import PROGRAM
from engine.backends.llama_cpp.settings import settings_of, way_of


class LlamaBackend:
    """Folders of models, converted ones, and the servers that run.

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
        """A backend for one arm; converts its models, and starts its server later.

        Raises:
            InvalidRequest: a combination that the engine cannot run.
            ModelError: a model that cannot be converted, or a converted folder of another model.
        """
        settings = settings_of(plan)
        models = self._models.of_arm(settings.draft, Folders(settings.python, settings.folders))
        job = launch_job(settings, models, plan.rows, self._models.target.context)
        return LlamaEngine(plan, self._models.target, self._process(settings, job), settings, models)

    def _process(self, settings: ProcessSettings, job: Mapping[str, Any]) -> RestartedEngine:
        """Arms over the same models, of the same way of speculating and of the same batch share a server."""
        key = f"{settings.python} {dict(job)}"
        if key not in self._processes:
            python = interpreter(settings.python, PROGRAM.name)
            launch = Launch(python, job, settings.start_s, settings.silence_s, {})
            self._processes[key] = RestartedEngine(PROGRAM, launch, settings.restarts)
        return self._processes[key]

    def close(self) -> None:
        """End all servers, and remove what was converted."""
        for process in self._processes.values():
            process.close()
        self._models.home.remove()


def launch_job(settings: ProcessSettings, models: ArmModels, rows: int, context: int) -> dict[str, Any]:
    """The first message to the driver."""
    return {
        "op": "start",
        "target": str(models.target.folder / MODEL),
        "draft": None if models.draft is None else str(models.draft.folder / MODEL),
        "way": way_of(settings),
        "speculative": dict(settings.speculative),
        "rows": rows,
        "context": context,
        "threads": settings.threads,
        "cache_prompt": caches(settings),
    }
