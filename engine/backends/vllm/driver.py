"""`python -m engine.backends.vllm.driver`: one vLLM engine, with requests on stdin and answers on stdout.

The first message holds the engine's arguments; requests and answers follow as frames (`engine.backends.frames`).
Every process of the engine is in this one's group: when stdin ends, because the parent closed it or died, the group
ends. What vLLM prints goes to stderr. This module imports only vLLM and the packages that vLLM itself requires.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

from engine.backends.engine_child import Inbox, one_line, run_child
from engine.backends.frames import Frame, write
from engine.backends.installed import installed, versions
from engine.backends.vllm import compat as guard
from engine.backends.vllm.memory import free_memory, require_memory
from engine.backends.vllm.public_api import counters, outputs_of, settings_of
from engine.backends.vllm.submit import answers_of, prepare_prefixes, require_device, submit

CPU_CACHE: Final = 2**30
"""Default size of the key-value cache on a CPU, in bytes."""
GRAMMARS: Final = ("llguidance", "xgrammar")
"""Packages of the grammar libraries."""
ALIVE_EVERY: Final = 2.0
"""Seconds between two heartbeats while an engine works."""


class Driver:
    """The loop of one engine."""

    def __init__(self, inbox: Inbox, out: BinaryIO) -> None:
        self._inbox = inbox
        self._out = out
        self._engine: Any = None
        self._said = time.monotonic()

    def say(self, **header: Any) -> None:
        """One message to the parent."""
        self._said = time.monotonic()
        write(self._out, Frame(header))

    def serve(self) -> None:
        """Start the engine, then answer requests until stdin ends."""
        first = self._inbox.get()
        if first is None:
            return
        try:
            self._engine = start(first.header)
            self.say(op="started", facts=self._facts(first.header))
        except Exception as error:
            self.say(op="failed", kind=type(error).__name__, message=one_line(error))
            return
        for frame in iter(self._inbox.get, None):
            try:
                self._answer(frame.header)
            except Exception as error:  # after any exception this engine can serve no further request
                self.say(op="died", kind=type(error).__name__, message=one_line(error))
                return

    def _answer(self, asked: Mapping[str, Any]) -> None:
        if asked["op"] == "record":
            self._engine.collective_rpc("specaudit_record", args=(asked["on"],))
            self.say(op="done")
        elif asked["op"] == "generate":
            self._generate(asked)

    def _facts(self, job: Mapping[str, Any]) -> dict[str, Any]:
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
        }

    def _generate(self, asked: Mapping[str, Any]) -> None:
        self._engine.collective_rpc("specaudit_spool", args=(asked["spool"], asked["rows"], asked.get("terms")))
        requests = asked["requests"]
        if "prefix" in asked:
            prepare_prefixes(self._engine, asked["prefix"], requests)
        before = counters(self._engine)
        width = len(requests) if asked["together"] else 1
        for at in range(0, len(requests), width or 1):
            self._run(requests[at : at + width])
        after = counters(self._engine)
        counted = {name: after[name] - before.get(name, 0) for name in after}
        worker, *_ = self._engine.collective_rpc("specaudit_facts")
        self.say(op="done", counters=counted, problems=worker["problems"], seconds=worker["seconds"])

    def _run(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Admit all of them, then step until all have answered."""
        engine, begun = self._engine.llm_engine, time.perf_counter()
        for request in requests:
            try:
                params = sampling_params(request["sampling"])
                submit(engine, request, params)
            except _refusals() as error:
                for name in answers_of(request):
                    self.say(op="refused", id=name, message=one_line(error))
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    taken = round((time.perf_counter() - begun) * 1e6)
                    for answer in outputs_of(output):
                        self.say(op="output", latency_us=taken, **answer)
            if time.monotonic() - self._said > ALIVE_EVERY:
                self.say(op="alive")


def sampling_params(given: Mapping[str, Any]) -> Any:
    """Parameters of vLLM; forbidden sequences are set as token ids, which its constructor does not accept."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    words, bias = given["bad_words"], {int(token): value for token, value in given["logit_bias"]}
    named = {key: value for key, value in given.items() if key not in ("bad_words", "logit_bias")}
    named |= {"logit_bias": bias} if bias else {}
    if "structured_outputs" in named:
        named["structured_outputs"] = StructuredOutputsParams(**named["structured_outputs"])
    params = SamplingParams(**named, output_kind=RequestOutputKind.FINAL_ONLY)
    if words:
        if not hasattr(params, "_bad_words_token_ids"):
            raise ValueError("this version of vLLM takes no forbidden token sequences")
        params._bad_words_token_ids = [list(each) for each in words]
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

    found = (getattr(exceptions, name, None) for name in ("VLLMClientError", "VLLMValidationError"))
    return (ValueError, *(each for each in found if each is not None))


def main() -> None:
    """Serve until stdin ends."""
    run_child(lambda inbox, out: Driver(inbox, out).serve())


if __name__ == "__main__":
    main()
