"""The models of a suite for mlx_lm, which reads their folders as they are, and the engines that run them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from engine.backends.converted.processes import RestartedEngine
from engine.backends.converted.settings import ProcessSettings
from engine.backends.engine_process import Launch, interpreter
from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine
from engine.backends.local_target import LocalTarget, facts_of
from engine.backends.mlx_lm.backend import MlxEngine
from engine.backends.mlx_lm.program import PROGRAM
from engine.backends.mlx_lm.settings import settings_of
from engine.core.errors import InvalidRequest, ModelError
from engine.models.loading import OpenedSource, open_source

OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}


class MlxBackend:
    """Folders of models, and the engines that run.

    Raises:
        ModelError: a model that cannot be found.
    """

    def __init__(self, models: Mapping[str, ModelSource]) -> None:
        self._target = LocalTarget(models["target"])
        self._opened: dict[str, OpenedSource] = {
            name: open_source(source.source, source.revision, source.base) for name, source in models.items()
        }
        self._processes: dict[str, RestartedEngine] = {}

    def models(self) -> tuple[ModelFacts, ...]:
        """Digests and sources by name."""
        return tuple(facts_of(name, opened) for name, opened in self._opened.items())

    def arm(self, plan: EngineSpec) -> Engine:
        """A backend for one arm; starts its engine later.

        Raises:
            InvalidRequest: a combination that the engine cannot run.
            ModelError: a draft of another size than the target.
        """
        settings = settings_of(plan)
        draft = None if settings.draft is None else self._draft(settings.draft)
        return MlxEngine(plan, self._target, self._process(settings, draft), settings, draft)

    def _draft(self, name: str) -> OpenedSource:
        if name not in self._opened:
            raise InvalidRequest(f"no model named {name!r}; there are: {', '.join(self._opened)}")
        draft, target = self._opened[name], self._opened["target"]
        ours, theirs = (opened.folder.config.get("vocab_size") for opened in (draft, target))
        if ours != theirs:
            raise ModelError(f"{draft.source}: {ours} logits, but the target has {theirs}; use a draft of that size")
        return draft

    def _process(self, settings: ProcessSettings, draft: OpenedSource | None) -> RestartedEngine:
        """Arms over the same models share an engine."""
        job: dict[str, Any] = {
            "op": "start",
            "target": _folder(self._opened["target"]),
            "draft": None if draft is None else _folder(draft),
        }
        key = f"{settings.python} {job}"
        if key not in self._processes:
            python = interpreter(settings.python, PROGRAM.name)
            launch = Launch(python, job, settings.start_s, settings.silence_s, OFFLINE)
            self._processes[key] = RestartedEngine(PROGRAM, launch, settings.restarts)
        return self._processes[key]

    def close(self) -> None:
        """End all engines."""
        for process in self._processes.values():
            process.close()


def _folder(opened: OpenedSource) -> dict[str, Any]:
    """A model's folder, and the digests by which the engine's process knows its weights again."""
    files = {file.name: file.sha256 for file in opened.folder.files}
    return {"folder": str(opened.folder.path.resolve()), "files": files}
