"""`python -m engine.backends.llama_cpp.driver`: one server of llama.cpp, with requests on stdin and answers on stdout.

The server runs in this process, in threads of its own, and is asked over HTTP on the loopback interface. The requests
of a message run together, each in a slot. The server's counters are read before and after them. Imports xllamacpp only,
besides numpy for the frames.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from engine.backends.installed import installed
from engine.backends.openai.server_counters import counters
from engine.backends.process.driver import ALIVE_EVERY, EngineDriver, microseconds, one_line, run_driver

MOVES_S: Final = 20.0
"""Seconds in which a living server answers between two steps."""
PAGE_S: Final = 120.0


class LlamaDriver(EngineDriver):
    """The loop of one server."""

    _server: Any = None
    _http: LoopbackServer

    def start(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Start the server; its package, its own properties, and the way of speculating that an answer names."""
        import xllamacpp

        params = parameters(xllamacpp, job)
        self._server = xllamacpp.Server(params)
        self._http = LoopbackServer(self._server.listening_address)
        properties = self._http.get("/props")
        tried = self._http.post("/completion", {"prompt": [0], "n_predict": 1, "temperature": 0})
        slots = self._http.get("/slots")
        speculative = params.speculative
        group = group_of(speculative, job["way"])
        return {
            "installed": installed(xllamacpp.__file__),
            "build": properties["build_info"],
            "compiled": dict(xllamacpp.BUILD_INFO),
            "slots": properties["total_slots"],
            "context": slots[0]["n_ctx"],
            "weights": properties["model_ftype"],
            "cache": [params.cache_type_k.name, params.cache_type_v.name],
            "way": tried["generation_settings"]["speculative.types"],
            "speculates": all(slot["speculative"] for slot in slots),
            "speculative": {name: getattr(group, name) for name in job["speculative"]},
            "synthetic": bool(speculative.synth_rates) or speculative.synth_len >= 0,
        }

    def generate(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Run the requests of one message together; each heartbeat is an answer of the server's own queue."""
        before = self._http.counters()
        with ThreadPoolExecutor(len(requests)) as pool:
            running = [pool.submit(self._ask, request) for request in requests]
            self._watch(running)
        after = self._http.counters()
        growth = {name: value - before.get(name, 0) for name, value in after.items()}
        answers = [_outcome(done) for done in running]
        totals = _totals([answer for answer in answers if isinstance(answer, Answered)])
        for request, item in zip(requests, answers, strict=True):
            if isinstance(item, RefusedRequest):
                self.say(op="refused", id=request["id"], message=one_line(item))
                continue
            self.say(
                op="output",
                id=request["id"],
                tokens=item.body["tokens"],
                answer=item.body,
                latency_us=item.microseconds,
                counters=growth,
                totals=totals,
            )

    def _ask(self, request: Mapping[str, Any]) -> Answered:
        begun = time.perf_counter()
        return Answered(self._http.post("/completion", request["body"]), microseconds(begun))

    def _watch(self, running: Sequence[Future[Answered]]) -> None:
        """Say that the server lives as long as its queue moves."""
        left: set[Future[Answered]] = set(running)
        while left:
            done, left = wait(left, ALIVE_EVERY, FIRST_COMPLETED)
            if not done and self._http.moves():
                self.say(op="alive")


def _outcome(done: Future[Answered]) -> Answered | RefusedRequest:
    try:
        return done.result()
    except RefusedRequest as error:
        return error


def _totals(answers: Sequence[Answered]) -> dict[str, int]:
    """The drafted and accepted tokens of answers that ran together."""
    timings = [answer.body["timings"] for answer in answers]
    names = {"drafted": "draft_n", "accepted": "draft_n_accepted"}
    return {ours: sum(timing.get(theirs, 0) for timing in timings) for ours, theirs in names.items()}


def group_of(speculative: Any, way: str) -> Any:
    """The options of a way of speculating in `common_params_speculative`."""
    return getattr(speculative, way.replace("-", "_") if way.startswith("ngram") else "draft")


def parameters(xllamacpp: Any, job: Mapping[str, Any]) -> Any:
    """`CommonParams` of a server: float32 everywhere, one slot per request, and nothing chosen by memory or by time."""
    params = xllamacpp.CommonParams()
    params.model.path = job["target"]
    params.n_parallel, params.n_ctx, params.kv_unified = job["rows"], job["rows"] * job["context"], False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.port, params.endpoint_metrics, params.endpoint_slots, params.ui = 0, True, True, False
    params.cache_prompt, params.cache_ram_mib, params.fit_params = job["cache_prompt"], 0, False
    speculative = params.speculative
    threaded = [params.cpuparams, params.cpuparams_batch]
    if job["way"] != "none":
        name = "COMMON_SPECULATIVE_TYPE_" + job["way"].upper().replace("-", "_")
        speculative.types = [getattr(xllamacpp.common_speculative_type, name)]
        group = group_of(speculative, job["way"])
        for option, value in job["speculative"].items():
            setattr(group, option, value)
    if job["draft"] is not None:
        draft = speculative.draft
        draft.mparams.path = job["draft"]
        draft.cache_type_k = draft.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        threaded += [draft.cpuparams, draft.cpuparams_batch]
    if job["threads"] is not None:
        for item in threaded:
            item.n_threads = job["threads"]
    return params


class RefusedRequest(Exception):
    """The server answered a request with an error; the message holds its words."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The body of an answer, and how long it took."""

    body: Mapping[str, Any]
    microseconds: int


class LoopbackServer:
    """A server at `http://HOST:PORT`."""

    def __init__(self, address: str) -> None:
        result = urlsplit(address)
        self._host, self._port = result.hostname or "127.0.0.1", result.port

    def get(self, path: str, seconds: float = PAGE_S) -> Any:
        """A page of JSON."""
        return json.loads(self._exchange("GET", path, None, seconds))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer to a request, however long it takes: the parent ends a server whose queue stands still.

        Raises:
            RefusedRequest: it is an error.
        """
        return json.loads(self._exchange("POST", path, json.dumps(body), None))

    def counters(self) -> dict[str, int]:
        """The server's counters of speculation, by name, and by position where it counts positions."""
        page = self._exchange("GET", "/metrics", None, PAGE_S).decode()
        return {name: round(value) for name, value in counters(page).items() if math.isfinite(value)}

    def moves(self) -> bool:
        """True if the server's queue answers between two steps."""
        with contextlib.suppress(OSError, http.client.HTTPException, RefusedRequest):
            self.get("/slots", MOVES_S)
            return True
        return False

    def _exchange(self, method: str, path: str, body: str | None, seconds: float | None) -> bytes:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != http.client.OK:
            raise RefusedRequest(_words(content) or f"status {answer.status}")
        return content


def _words(content: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(content)["error"]["message"])
    return ""


if __name__ == "__main__":
    run_driver(LlamaDriver)
