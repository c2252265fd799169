"""`python -m engine.backends.onnxruntime_genai.driver`: one engine, with requests on stdin and answers on stdout.

Requests run one after another: the engine's generator has one sequence. After every token the counters of speculation
are read, and before it, if the request asks for rows, the target's row. Imports only onnxruntime-genai and numpy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np

from engine.backends.engine_child import Inbox, one_line, run_child
from engine.backends.frames import Frame, write
from engine.backends.installed import installed, versions

PACKAGES: Final = ("onnxruntime", "onnx", "onnx-ir", "numpy")
ALIVE_EVERY: Final = 2.0
"""Seconds between two heartbeats while a request runs."""
COUNTED: Final = (
    "rounds",
    "completed_rounds",
    "interrupted_rounds",
    "draft_tokens_proposed",
    "draft_tokens_evaluated",
    "draft_tokens_accepted",
    "correction_tokens",
    "bonus_tokens",
    "tokens_queued",
    "tokens_emitted",
    "tokens_discarded",
    "tokens_buffered",
    "standard_fallback_steps",
    "draft_forward_passes",
    "target_forward_passes",
)
"""Counters of the engine that count events; the others are times, ratios and the state of its controller."""


@dataclass(slots=True)
class Seen:
    """The observations of one request: by token the row before it and the growth of the counters after it."""

    tokens: list[int] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    growth: list[dict[str, int]] = field(default_factory=list)


class OrtDriver:
    """The loop of one engine."""

    def __init__(self, inbox: Inbox, out: BinaryIO) -> None:
        self._inbox, self._out = inbox, out
        self._model: Any = None
        self._said = time.monotonic()

    def say(self, arrays: Mapping[str, Any] | None = None, **header: Any) -> None:
        """One message to the parent."""
        self._said = time.monotonic()
        write(self._out, Frame(header, arrays or {}))

    def serve(self) -> None:
        """Load the model, then answer requests until stdin ends."""
        first = self._inbox.get()
        if first is None:
            return
        try:
            self.say(op="started", facts=self._start(first.header))
        except Exception as error:
            self.say(op="failed", kind=type(error).__name__, message=one_line(error))
            return
        for frame in iter(self._inbox.get, None):
            if frame.header["op"] == "options":
                self._options(frame.header)
            for request in frame.header.get("requests", ()):
                self._answer(request)
            self.say(op="done")

    def _options(self, asked: Mapping[str, Any]) -> None:
        """The options of speculation as the engine keeps them."""
        try:
            params = self._params({"search": {}, **asked})
            self.say(op="options", kept=dict(params.get_speculative_options()))
        except Exception as error:
            self.say(op="refused", id="", message=f"{type(error).__name__}: {one_line(error)}")

    def _start(self, job: Mapping[str, Any]) -> dict[str, Any]:
        import onnxruntime_genai as og

        og.disable_telemetry_events()
        self._model = og.Model(og.Config(job["folder"]))
        return {
            "installed": installed(og.__file__),
            "commit": og.__commit__,
            "packages": versions(PACKAGES),
            "device": self._model.device_type,
            "type": self._model.type,
        }

    def _answer(self, request: Mapping[str, Any]) -> None:
        """One request; the library's exceptions concern it alone."""
        begun = time.perf_counter()
        try:
            params = self._params(request)
            seen, sequence = self._generate(params, request)
        except Exception as error:
            self.say(op="refused", id=request["id"], message=f"{type(error).__name__}: {one_line(error)}")
            return
        self.say(
            {"rows": np.stack(seen.rows)} if seen.rows else None,
            op="output",
            id=request["id"],
            tokens=seen.tokens,
            sequence=sequence,
            growth=seen.growth,
            search=dict(params.get_search_options()),
            speculative=dict(params.get_speculative_options()),
            latency_us=round((time.perf_counter() - begun) * 1e6),
        )

    def _params(self, request: Mapping[str, Any]) -> Any:
        import onnxruntime_genai as og

        params = og.GeneratorParams(self._model)
        params.set_search_options(**request["search"])
        if request["speculative"]:
            params.set_speculative_options(**request["speculative"])
        return params

    def _generate(self, params: Any, request: Mapping[str, Any]) -> tuple[Seen, list[int]]:
        import onnxruntime_genai as og

        generator = og.Generator(self._model, params)
        generator.append_tokens(np.array(request["prompt"], dtype=np.int32))
        seen, before = Seen(), counters(generator)
        while not generator.is_done() and not (seen.tokens and seen.tokens[-1] in request["ends"]):
            if request["rows"]:
                # the array is a view of a buffer that the engine reuses
                seen.rows.append(np.array(generator.get_logits(), dtype=np.float32).reshape(-1))
            generator.generate_next_token()
            seen.tokens.append(int(generator.get_next_tokens()[0]))
            after = counters(generator)
            seen.growth.append({name: after[name] - before[name] for name in COUNTED if after[name] != before[name]})
            before = after
            if time.monotonic() - self._said > ALIVE_EVERY:
                self.say(op="alive")
        return seen, [int(token) for token in generator.get_sequence(0)]


def counters(generator: Any) -> dict[str, int]:
    """The counters of a generator."""
    stats = generator.get_speculative_stats()
    return {name: int(stats[name]) for name in COUNTED}


def main() -> None:
    """Serve until stdin ends."""
    run_child(lambda inbox, out: OrtDriver(inbox, out).serve())


if __name__ == "__main__":
    main()
