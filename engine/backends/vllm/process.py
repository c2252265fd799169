"""The parent's side of one vLLM engine: `engine.backends.engine_process`, with the scheduler's log beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engine.backends.engine_process import EngineProcess, EngineProgram, Launch
from engine.backends.vllm.spool import SchedulerLog

PROGRAM: Final = EngineProgram(
    module="engine.backends.vllm.driver",
    name="vLLM",
    package="vllm",
    target="venv-vllm",
    echoes=("EngineDead", "WorkerProc initialization failed"),
)
QUIET: Final = {"VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment variables that disable the engine's usage reports."""


class VllmProcess(EngineProcess):
    """One running engine. Raises as `EngineProcess`."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(PROGRAM, replace(launch, environment={**QUIET, **launch.environment}))

    @property
    def scheduler_log(self) -> SchedulerLog:
        """What the hook in the scheduler writes."""
        return self._scheduler_log

    def first_message(self) -> Mapping[str, Any]:
        """The job, with the places of the hooks' files."""
        self._scheduler_log = SchedulerLog(self.home / "scheduler.jsonl")
        job = dict(self._launch.job)
        ours = {"scheduler": str(self._scheduler_log.path), "script": job["script"]}
        return {**job, "arguments": {**job["arguments"], "additional_config": {"specaudit": ours}}}
