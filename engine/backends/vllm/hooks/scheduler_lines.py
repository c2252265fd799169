"""The lines of the scheduler's hook, without vLLM: one step each, with the drafted tokens that grammars forbade."""

import json
from collections.abc import Mapping
from typing import Any


class Dropped:
    """Drafted tokens that grammars forbade, by request, until the step for which they were drafted."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}
        self._tokens: dict[str, list[int]] = {}

    def note(self, name: str, offered: list[int], kept: list[int]) -> None:
        """One request's draft, and what the grammar left of it."""
        rest = offered[len(kept) :]
        self._kept.pop(name, None)
        if kept == offered[: len(kept)] and rest and rest[0] >= 0:
            self._kept[name], self._tokens[name] = len(kept), rest

    def take(self, name: str, drafted: int) -> list[int]:
        """The tokens behind the scheduled draft; none if that was shortened for another reason."""
        kept = self._kept.pop(name, None)
        tokens = self._tokens.pop(name, [])
        return tokens if kept == drafted else []


def line_of(scheduler_output: Any, model_runner_output: Any, dropped: Dropped, requests: Mapping[str, Any]) -> str:
    """One step as JSON: for each request the drafted and the emitted tokens, those that its grammar forbade, its
    priority, and its preemptions so far.
    """
    sampled, index = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
    drafted = scheduler_output.scheduled_spec_decode_tokens
    steps = []
    for name in scheduler_output.num_scheduled_tokens:
        scheduled = [int(item) for item in drafted.get(name, ())]
        forbidden = dropped.take(name, len(scheduled))
        if sampled and name in index:
            step = {"id": name, "drafted": scheduled, "emitted": _tokens(sampled[index[name]])}
            if (request := requests.get(name)) is not None:
                step |= {"priority": request.priority, "preemptions": request.num_preemptions}
            steps.append(step | ({"forbidden": forbidden} if forbidden else {}))
    return json.dumps([step for step in steps if step["emitted"]])


def _tokens(row: Any) -> list[int]:
    return [int(item) for item in row]
