"""The scheduler's hook: a vLLM scheduler that logs its inputs and outputs of every step.

Given to vLLM as `scheduler_cls`, it lives in the engine's core process, sees
neither rows nor probabilities, and shares no code with the hook in the worker.
One JSON line per step, into the file that `additional_config` names; flushed, so that the log survives the engine's
death. The hook passes everything on unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TextIO

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

KEY: Final = "specaudit"
"""Of `additional_config`: a mapping with the file's path under `scheduler`."""


class LoggingScheduler(Scheduler):  # type: ignore[misc]  # vLLM ships no annotations that mypy reads here
    """vLLM's scheduler with a scheduler log."""

    specaudit_scheduler_log: TextIO | None = None

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Log the step before vLLM cuts it at a stop."""
        if self.specaudit_scheduler_log is None:
            path = self.vllm_config.additional_config[KEY]["scheduler"]
            self.specaudit_scheduler_log = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open while it runs
        self.specaudit_scheduler_log.write(line_of(scheduler_output, model_runner_output, self.requests) + "\n")
        self.specaudit_scheduler_log.flush()
        return super().update_from_output(scheduler_output, model_runner_output)


class AsyncLoggingScheduler(LoggingScheduler, AsyncScheduler):  # type: ignore[misc]  # as above
    """The same for asynchronous scheduling, where drafted tokens are placeholders when they are scheduled."""


def line_of(scheduler_output: Any, model_runner_output: Any, requests: Mapping[str, Any]) -> str:
    """One step as JSON: for each request its drafted and emitted tokens, its priority, and its preemptions so far."""
    sampled, index = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
    drafted = scheduler_output.scheduled_spec_decode_tokens
    steps = [
        {
            "id": name,
            "drafted": [int(each) for each in drafted.get(name, ())],
            "emitted": _tokens(sampled[index[name]]),
            **_known_of(requests.get(name)),
        }
        for name in scheduler_output.num_scheduled_tokens
        if sampled and name in index
    ]
    return json.dumps([step for step in steps if step["emitted"]])


def _known_of(request: Any) -> dict[str, Any]:
    return {} if request is None else {"priority": request.priority, "preemptions": request.num_preemptions}


def _tokens(row: Any) -> list[int]:
    return [int(each) for each in row]
