"""The scheduler's hook: a vLLM scheduler that logs its inputs and outputs of every step.

Given to vLLM as `scheduler_cls`, it lives in the engine's core process, sees neither rows nor probabilities, and shares
no code with the hook in the worker. One JSON line per step, into the file that `additional_config` names; flushed, so
that the log survives the engine's death. Drafted tokens that a grammar forbids end at the scheduler: they are in the
line of the step for which they were drafted. The hook passes everything on unchanged.
"""

from __future__ import annotations

from typing import Any, Final, TextIO

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from engine.backends.vllm.hooks.scheduler_lines import Dropped, line_of

KEY: Final = "specaudit"
"""Of `additional_config`: a mapping with the file's path under `scheduler`."""


class LoggingScheduler(Scheduler):  # type: ignore[misc]  # vLLM ships no annotations that mypy reads here
    """vLLM's scheduler with a scheduler log."""

    specaudit_scheduler_log: TextIO | None = None
    specaudit_dropped: Dropped | None = None

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Note the drafted tokens that vLLM drops because a grammar forbids them."""
        if self.specaudit_dropped is None:
            self.specaudit_dropped = Dropped()
        offered = {
            name: [int(token) for token in tokens]
            for name, tokens in zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True)
            if (request := self.requests.get(name)) and request.use_structured_output and not request.is_prefill_chunk
        }
        super().update_draft_token_ids(draft_token_ids)
        for name, tokens in offered.items():
            self.specaudit_dropped.note(name, tokens, list(self.requests[name].spec_token_ids))

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Log the step before vLLM cuts it at a stop."""
        if self.specaudit_scheduler_log is None:
            path = self.vllm_config.additional_config[KEY]["scheduler"]
            self.specaudit_scheduler_log = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open while it runs
        dropped = self.specaudit_dropped or Dropped()
        line = line_of(scheduler_output, model_runner_output, dropped, self.requests)
        self.specaudit_scheduler_log.write(line + "\n")
        self.specaudit_scheduler_log.flush()
        return super().update_from_output(scheduler_output, model_runner_output)


class AsyncLoggingScheduler(LoggingScheduler, AsyncScheduler):  # type: ignore[misc]  # as above
    """The same for asynchronous scheduling, where drafted tokens are placeholders when they are scheduled."""
