"""`python -m engine.backends.vllm.driver`: one vLLM engine, with requests on stdin and answers on stdout.

The first message holds the engine's arguments; requests and answers follow as frames (`engine.core.child`).
Every process of the engine is in this one's group: when stdin ends, because the parent closed it or died, the group
ends. What vLLM prints goes to stderr. This module imports only vLLM and the packages that vLLM itself requires.

The memory that an engine on a CPU takes, and whether so much is free.

Weights count with the size of their files: the module does not know that a dtype wider than theirs needs more.

Requests into a running engine, with adapter and priority, and the prefixes that it keeps. Runs in the driver.
"""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from engine.backends.installed import installed, plug_ins, versions
from engine.backends.process.driver import EngineDriver, microseconds, one_line, run_driver
from engine.backends.vllm import compat as guard
from engine.backends.vllm.public_api import counters, outputs_of, settings_of

GPU_ONLY = "needs a GPU, here there is"
BOUND: Final = "VLLM_CPU_OMP_THREADS_BIND"


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
    rounded = _document(Path(arguments.get("model", "")) / "config.json").get("quantization_config")
    if rounded and arguments.get("dtype") == "float32":
        kind = rounded.get("quant_method", "an unnamed way")
        raise ValueError(
            f"models.target: vLLM has no float32 on {device} for weights rounded by {kind}; write dtype: bfloat16"
        )
    ranks, cores = arguments.get("tensor_parallel_size", 1), sorted(os.sched_getaffinity(0))
    if ranks > len(cores):
        raise ValueError(f"tensor_parallel_size {ranks} needs as many cores, here are {len(cores)}; lower it")
    if ranks > 1:
        # vLLM asks for a NUMA node for each rank, or for the cores of each
        os.environ.setdefault(BOUND, "|".join(str(core) for core in cores[:ranks]))


def _document(path: Path) -> Mapping[str, Any]:
    """A file of JSON, empty without one: vLLM says what it lacks."""
    if not path.is_file():
        return {}
    document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


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


GIB: Final = 2**30
PROCESSES: Final = int(1.6 * GIB)
"""An engine's three processes without weights and cache, by the proportional set size of vLLM 0.32 on Linux."""
RANK: Final = int(0.6 * GIB)
"""Each further rank's process."""
WEIGHTS: Final = ("*.safetensors", "*.bin")


def needed(arguments: Mapping[str, Any]) -> int:
    """Bytes that an engine with these arguments takes at least."""
    draft = (arguments.get("speculative_config") or {}).get("model")
    folders = [Path(arguments["model"]), *([Path(draft)] if draft else [])]
    more = RANK * (int(arguments.get("tensor_parallel_size", 1)) - 1)
    return PROCESSES + more + int(arguments["kv_cache_memory_bytes"]) + sum(map(_weights, folders))


def _weights(folder: Path) -> int:
    """Bytes of the weights; 0 for a model that is no folder, such as a proposer's class."""
    return sum(path.stat().st_size for pattern in WEIGHTS for path in folder.glob(pattern))


def require_memory(arguments: Mapping[str, Any], free: int) -> None:
    """Raise MemoryError unless an engine with these arguments fits into `free` bytes."""
    least = needed(arguments)
    if least > free:
        raise MemoryError(
            f"one more engine needs {least / GIB:.1f} GiB of memory, {free / GIB:.1f} GiB are free; "
            "write a smaller engines or kv_cache_gib under engine, or end other programs"
        )


def free_memory() -> int:
    """Bytes that programs can still take without swapping."""
    import psutil  # vLLM requires it; this package does not

    return int(psutil.virtual_memory().available)


CPU_CACHE: Final = 2**30
"""Default size of the key-value cache on a CPU, in bytes."""
GRAMMARS: Final = ("llguidance", "xgrammar")
"""Packages of the grammar libraries."""
PROCESSORS_GROUP: Final = "vllm.logits_processors"
"""Entry points of installed logits processors, which vLLM runs in every engine without a draft."""


class VllmDriver(EngineDriver):
    """The loop of one engine."""

    _engine: Any = None

    def start(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Start the engine; its facts."""
        self._engine = start(job)
        import vllm

        worker, *_ = self._engine.collective_rpc("specaudit_begin", args=(job["repair"],))
        problems = guard.problems(guard.SCHEDULER, vllm.__version__)
        settings = settings_of(self._engine.llm_engine.vllm_config)
        return {
            "worker": worker,
            "scheduler": problems,
            "settings": settings,
            "installed": installed(vllm.__file__),
            "grammars": versions(GRAMMARS),
            "plug_ins": plug_ins(PROCESSORS_GROUP),
        }

    def answer(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one message; after a generation, its counters."""
        if message["op"] == "record":
            self._engine.collective_rpc("specaudit_record", args=(message["on"],))
            return {}
        self._engine.collective_rpc("specaudit_spool", args=(message["spool"], message["rows"], message.get("terms")))
        requests = message["requests"]
        if "prefix" in message:
            prepare_prefixes(self._engine, message["prefix"], requests)
        before = counters(self._engine)
        width = len(requests) if message["together"] else 1
        for at in range(0, len(requests), width or 1):
            self._run(requests[at : at + width])
        after = counters(self._engine)
        counted = {name: after[name] - before.get(name, 0) for name in after}
        worker, *_ = self._engine.collective_rpc("specaudit_facts")
        return {"counters": counted, "problems": worker["problems"], "seconds": worker["seconds"]}

    def _run(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Admit all of them, then step until all have answered or their clients have left."""
        engine, begun = self._engine.llm_engine, time.perf_counter()
        leaving = {request["id"]: request["leaves_after"] for request in requests if "leaves_after" in request}
        for request in requests:
            try:
                params = sampling_params(request["sampling"], tells=request["id"] in leaving)
                submit(engine, request, params)
            except _refusals() as error:
                for name in answers_of(request):
                    self.say(op="refused", id=name, message=one_line(error))
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    taken = microseconds(begun)
                    for answer in outputs_of(output):
                        self.say(op="output", latency_us=taken, **answer)
                elif len(output.outputs[0].token_ids) >= leaving.get(output.request_id, math.inf):
                    engine.abort_request([output.request_id])
                    self.say(op="refused", id=output.request_id, message="its client left")
            self.beat()


def sampling_params(given: Mapping[str, Any], *, tells: bool = False) -> Any:
    """Parameters of vLLM; forbidden sequences are set as token ids, which its constructor does not accept.

    A request that `tells` shows its tokens after every step.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    words, bias = given["bad_words"], {int(token): value for token, value in given["logit_bias"]}
    named = {key: value for key, value in given.items() if key not in ("bad_words", "logit_bias")}
    named |= {"logit_bias": bias} if bias else {}
    if "structured_outputs" in named:
        named["structured_outputs"] = StructuredOutputsParams(**named["structured_outputs"])
    kind = RequestOutputKind.CUMULATIVE if tells else RequestOutputKind.FINAL_ONLY
    params = SamplingParams(**named, output_kind=kind)
    if words:
        if not hasattr(params, "_bad_words_token_ids"):
            raise ValueError("this version of vLLM takes no forbidden token sequences")
        params._bad_words_token_ids = [list(word) for word in words]
    return params


def start(job: Mapping[str, Any]) -> Any:
    """The engine.

    Raises:
        ValueError: a setting that needs a GPU, on a machine without one.
        MemoryError: too little memory is free for an engine on a CPU.
        Exception: whatever vLLM raises.
    """
    from vllm import LLM
    from vllm.platforms import current_platform

    require_device(job, current_platform)
    arguments = dict(job["arguments"])
    if current_platform.is_cpu():
        # vLLM would take a share of the machine's memory
        arguments.setdefault("kv_cache_memory_bytes", CPU_CACHE)
        require_memory(arguments, free_memory())
    return LLM(**arguments)


def _refusals() -> tuple[type[Exception], ...]:
    """Exceptions that vLLM raises for unknown parameters; any other exception is a failure."""
    from vllm import exceptions

    result = (getattr(exceptions, name, None) for name in ("VLLMClientError", "VLLMValidationError"))
    return (ValueError, *(item for item in result if item is not None))


if __name__ == "__main__":
    run_driver(VllmDriver)
