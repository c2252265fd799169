"""Settings of an arm's requests beside their sampling parameters: asked of vLLM, and read back from it.

A suite writes them under `engine: {request: ...}`. A list gives every prompt one of its values, by the prompt's tokens:
the same in every arm, so that a request of an arm and its pair in the baseline have the same one, and different among
the requests of a batch. The hooks and the answers say what was in effect (`effective`); check `configuration` compares.
Cannot see: whether vLLM's work agrees with its own account, which the checks of tokens and rows show.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from engine.backends.engine_spec import EngineSpec
from engine.backends.vllm.spool import SpooledStep
from engine.core.errors import InvalidRequest
from engine.core.types import Request

if TYPE_CHECKING:
    # the driver imports options, and needs no adapters
    from engine.models.files.adapters import Adapter

KEY: Final = "request"
"""Of the settings of an engine."""
COLD: Final = "cold"
WARM: Final = "warm"
LISTED: Final = "logprob_token_ids"
"""The tokens whose log-probabilities an answer lists, in place of the likeliest ones."""
OF_SAMPLING: Final = ("prompt_logprobs", "include_stop_str_in_output", "n", LISTED)
"""Settings that vLLM has among its sampling parameters."""
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest ranks that vLLM can be started with."""


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """The settings of an arm's requests, as the suite has them, and the adapters by name."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    adapters: Mapping[str, Adapter] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples per request of vLLM."""
        return int(self.settings.get("n", 1))

    def chosen(self, request: Request) -> dict[str, Any]:
        """The request's own values; settings that are off for it are left out."""
        place = int.from_bytes(hashlib.sha256(repr(request.prompt).encode()).digest()[:8], "big")
        own = {name: _one(value, place) for name, value in self.settings.items()}
        if request.sampling.greedy:
            # a greedy request has no seed in any case
            own.pop("unseeded", None)
        return {name: value for name, value in own.items() if value is not None}

    def adapter_of(self, request: Request) -> Adapter | None:
        """The request's adapter; None if the target alone serves it."""
        name = self.chosen(request).get("adapter")
        return None if name is None else self.adapters[name]


def _one(value: Any, place: int) -> Any:
    return value[place % len(value)] if isinstance(value, list) else value


def terms_of(plan: EngineSpec, adapters: Mapping[str, Adapter]) -> RequestTerms:
    """The terms of a plan. Raises InvalidRequest: a setting that the engine's settings contradict."""
    settings = dict(plan.engine.get(KEY, {}))
    known = ", ".join(adapters) or "none"
    asked = settings.get("adapter", [])
    for name in asked if isinstance(asked, list) else [asked]:
        if name is not None and name not in adapters:
            raise InvalidRequest(f"engine.request.adapter: there is no adapter {name!r}; adapters has: {known}")
    if "priority" in settings and plan.engine.get("scheduling_policy") != "priority":
        raise InvalidRequest("engine.request.priority: has no effect; write scheduling_policy: priority under engine")
    if "prefix" in settings and not plan.engine.get("enable_prefix_caching"):
        raise InvalidRequest("engine.request.prefix: no prefix is kept; write enable_prefix_caching: true under engine")
    return RequestTerms(settings, adapters)


def adapter_arguments(adapters: Mapping[str, Adapter]) -> dict[str, Any]:
    """The arguments of vLLM for an engine with adapters; none without."""
    if not adapters:
        return {}
    largest = max(adapter.rank for adapter in adapters.values())
    rank = next((item for item in RANKS if item >= largest), largest)
    return {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": rank}


def adapter_facts(adapters: Mapping[str, Adapter]) -> dict[str, Any]:
    """The adapters in an effective configuration; none without."""
    if not adapters:
        return {}
    return {
        "adapters": {
            adapter.name: {"source": adapter.source, "sha256": adapter.sha256} for adapter in adapters.values()
        }
    }


@dataclass(frozen=True, slots=True)
class Asked:
    """The aim of a request of vLLM: one of ours, or several samples of one prompt."""

    name: str
    requests: tuple[Request, ...]
    samples: int

    def by_answer(self) -> dict[str, Request]:
        """Our requests by vLLM's names of their answers."""
        if self.samples == 1:
            return {self.name: self.requests[0]}
        return {f"{index}_{self.name}": request for index, request in enumerate(self.requests)}


def grouped(requests: Sequence[Request], terms: RequestTerms, call: int) -> tuple[Asked, ...]:
    """The requests of vLLM in a call; samples of one prompt under the same parameters share one."""
    groups: list[list[Request]] = []
    open_groups: dict[Any, list[Request]] = {}
    for request in requests:
        key = (request.prompt, request.sampling, request.leaves_after)
        group = open_groups.get(key, [])
        if not group:
            groups.append(group)
        group.append(request)
        open_groups[key] = group if len(group) < terms.samples else []
    return tuple(Asked(f"{call}.{index}", tuple(group), terms.samples) for index, group in enumerate(groups))


def message_of(asked: Asked, terms: RequestTerms, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """One of vLLM's requests for the driver; `sampling` are its parameters without these settings."""
    request = asked.requests[0]
    own = terms.chosen(request)
    params = dict(sampling) | {name: own[name] for name in OF_SAMPLING if name in own}
    if own.get("unseeded"):
        params.pop("seed", None)
    if LISTED in own:
        # vLLM takes one of the two
        params["logprobs"] = None
    message: dict[str, Any] = {"id": asked.name, "prompt": list(request.prompt), "sampling": params}
    if asked.samples > 1:
        message["answers"] = [f"{index}_{asked.name}" for index in range(asked.samples)]
    if request.leaves_after:
        message["leaves_after"] = request.leaves_after
    if "priority" in own:
        message["priority"] = own["priority"]
    adapter = terms.adapter_of(request)
    if adapter is not None:
        # vLLM tells adapters apart by their numbers, also those of other arms on the same engine
        number = 1 + int(adapter.sha256[:12], 16)
        message["adapter"] = {"name": adapter.name, "number": number, "folder": str(adapter.folder)}
    return message


@dataclass(frozen=True, slots=True)
class Witnessed:
    """The engine's accounts of one request.

    worker: for each step of the worker, what its batch held for the request; None without such a record.
    scheduler: the last step of the scheduler; None without its record.
    """

    answer: Mapping[str, Any]
    worker: tuple[Mapping[str, Any], ...] | None
    scheduler: SpooledStep | None


def request_facts(terms: RequestTerms, request: Request, seen: Witnessed) -> dict[str, Any]:
    """The requested settings of a request and those in effect, as far as they are known; none without settings."""
    asked = terms.chosen(request)
    if not terms.settings:
        return {}
    known = _effective(request, seen)
    if asked.get("prefix") == COLD:
        # the driver fails unless vLLM forgot all prefixes; within a call, requests may still read those of others
        known["prefix"] = COLD
    if LISTED in asked and "listed" in seen.answer:
        known[LISTED] = [token for token in asked[LISTED] if token in seen.answer["listed"]]
    # requests of the target alone, among others with an adapter
    asked |= {"adapter": None} if "adapter" in terms.settings and "adapter" not in asked else {}
    facts: dict[str, Any] = {"requested": asked, "effective": {name: known[name] for name in asked if name in known}}
    adapter = terms.adapter_of(request)
    if adapter is not None:
        facts["adapter_sha256"] = adapter.sha256
    said = seen.answer.get("prompt_logprobs")
    return {KEY: facts, **({} if said is None else {"prompt_logprobs": said["own"]})}


def _effective(request: Request, seen: Witnessed) -> dict[str, Any]:
    answer, result = seen.answer, dict[str, Any]()
    if seen.worker:
        adapters = sorted({str(step["adapter"]) for step in seen.worker})
        one = seen.worker[0]["adapter"]
        result["adapter"] = one if len(adapters) == 1 else " and ".join(adapters)
        result["unseeded"] = not any(step["seeded"] for step in seen.worker)
    if seen.scheduler is not None and seen.scheduler.priority is not None:
        result["priority"] = seen.scheduler.priority
    if answer.get("samples") is not None:
        result["n"] = answer["samples"]
    if answer.get("prompt_logprobs") is not None:
        whole = len(answer["prompt_logprobs"]["own"]) == len(request.prompt)
        result["prompt_logprobs"] = answer["prompt_logprobs"]["ranks"] if whole else "only a part of the prompt"
    if isinstance(answer.get("stop_reason"), str):
        result["include_stop_str_in_output"] = answer["text"].endswith(answer["stop_reason"])
    if answer.get("cached_tokens") is not None:
        result["prefix"] = WARM if answer["cached_tokens"] else COLD
    return result


def whole_groups(size: int, terms: RequestTerms) -> int:
    """`size` requests or a few more, so that a call holds all samples of a prompt and of its neighbours."""
    unit = 2 * terms.samples
    return -(-size // unit) * unit
