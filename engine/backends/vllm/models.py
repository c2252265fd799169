"""The models of a suite for vLLM: found and digested here, loaded by the engines.

An engine starts at an arm's first request. Arms with the same engine share it; an arm that sends one request at a time
shares an engine of any batch size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.backends import REGISTRY
from engine.backends.engine_spec import EngineSpec, ModelFacts, ModelSource
from engine.backends.interface import Engine
from engine.backends.local_target import LocalTarget, facts_of
from engine.backends.vllm.adapters import AdapterTargets
from engine.backends.vllm.backend import VllmEngine
from engine.backends.vllm.options import EXTENSION, ModelFolders, VllmSettings, setting_of
from engine.backends.vllm.supervise import EnginePool
from engine.core.errors import InvalidRequest
from engine.models.loading import OpenedSource, open_source


class VllmBackend:
    """Folders of models, and the engines that run.

    Args:
        models: sources by name.
        extension: the class that extends vLLM's worker.
    """

    def __init__(self, models: Mapping[str, ModelSource], extension: str = EXTENSION) -> None:
        self._target = LocalTarget(models["target"])
        self._drafts: dict[str, OpenedSource] = {
            name: open_source(each.source, each.revision, each.base)
            for name, each in models.items()
            if name != "target"
        }
        folders = {name: each.folder.path.resolve() for name, each in self._drafts.items()}
        self._places = ModelFolders(
            self._target.folder.resolve(), folders, self._target.context, models["target"].dtype
        )
        self._adapters = AdapterTargets(models["target"], self._target)
        self._extension = extension
        self._pool = EnginePool()
        self._wide: dict[str, VllmSettings] = {}

    def models(self) -> tuple[ModelFacts, ...]:
        """Digests and sources by name."""
        return (self._target.facts("target"), *(facts_of(name, each) for name, each in self._drafts.items()))

    def arm(self, plan: EngineSpec) -> Engine:
        """A backend for one arm; its engine is started later."""
        kind = REGISTRY["vllm"]
        unknown = [name for name in plan.drafts if name not in self._drafts]
        if unknown:
            raise InvalidRequest(f"no model named {unknown[0]!r}; there are: {', '.join(('target', *self._drafts))}")
        if plan.proposer is not None and plan.proposer not in (kind.proposers or ()):
            raise InvalidRequest(f"vLLM has no proposer {plan.proposer!r}; it has: {', '.join(kind.proposers or ())}")
        if plan.fault is not None:
            raise InvalidRequest(f"fault {plan.fault}: faults are of the native backend; remove it")
        adapters = self._adapters.opened(plan.engine.get("adapters", {}))
        setting = setting_of(plan, replace(self._places, adapters=adapters), self._extension)
        if setting.narrow:
            setting = self._sharing(setting)
        else:
            self._wide.setdefault(setting.likeness, setting)
        return VllmEngine(plan, setting, self._target, self._pool, self._adapters)

    def close(self) -> None:
        """End all engines."""
        self._pool.close()
        self._adapters.close()

    def _sharing(self, setting: VllmSettings) -> VllmSettings:
        """The engine of an arm before this one that is otherwise the same."""
        wide = self._wide.get(setting.likeness)
        if wide is None:
            return setting
        requested = {**setting.requested, "max_num_seqs": wide.requested["max_num_seqs"]}
        return replace(setting, job=wide.job, requested=requested)
