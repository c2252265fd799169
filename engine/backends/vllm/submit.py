"""Requests into a running engine, with adapter and priority, and the prefixes that it keeps. Runs in the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GPU_ONLY = "needs a GPU, here there is"


def require_device(job: Mapping[str, Any], platform: Any) -> None:
    """Refuse what vLLM would ignore on this device, or fail at later.

    Raises:
        ValueError: a setting that needs a GPU, with the place to change.
    """
    if platform.is_cuda_alike():
        return
    arguments, device = job["arguments"], platform.device_name
    if job["model_runner"] == "v2":
        raise ValueError(f"model runner v2 {GPU_ONLY} {device}; write model_runner: v1, or leave it out")
    if arguments.get("async_scheduling"):
        raise ValueError(f"async_scheduling {GPU_ONLY} {device}; write async_scheduling: false, or leave it out")
    if arguments.get("tensor_parallel_size", 1) > 1:
        raise ValueError(f"tensor_parallel_size above 1 {GPU_ONLY} {device}; leave it out")


def answers_of(request: Mapping[str, Any]) -> Sequence[str]:
    """Names of the answers that a request asks for."""
    names: Sequence[str] = request.get("answers", (request["id"],))
    return names


def submit(engine: Any, request: Mapping[str, Any], params: Any) -> None:
    """Admit one request; raises whatever vLLM raises."""
    engine.add_request(
        request["id"],
        {"prompt_token_ids": request["prompt"]},
        params,
        lora_request=_adapter(request),
        priority=request.get("priority", 0),
    )


def _adapter(request: Mapping[str, Any]) -> Any:
    given = request.get("adapter")
    if given is None:
        return None
    from vllm.lora.request import LoRARequest

    return LoRARequest(given["name"], given["number"], given["folder"])


def prepare_prefixes(llm: Any, wanted: str, requests: Sequence[Mapping[str, Any]]) -> None:
    """Make the engine keep no prefix of the requests (cold), or all of them (warm), by answers that nobody reads.

    Raises:
        RuntimeError: the engine did not forget its prefixes.
    """
    from vllm import SamplingParams

    if not llm.reset_prefix_cache():
        raise RuntimeError("vLLM did not forget the prefixes that it keeps")
    if wanted != "warm":
        return
    for number, request in enumerate(requests):
        brief = SamplingParams(temperature=0.0, max_tokens=1)
        submit(llm.llm_engine, {**request, "id": f"warm.{number}"}, brief)
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
