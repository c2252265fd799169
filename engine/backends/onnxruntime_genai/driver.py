"""`python -m engine.backends.onnxruntime_genai.driver`: one engine, with requests on stdin and answers on stdout.

Requests run one after another: the engine's generator has one sequence. After every token the counters of speculation
are read, and before it, if the request asks for rows, the target's row. Imports only onnxruntime-genai and numpy.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from engine.backends.installed import installed, versions
from engine.backends.process.driver import EngineDriver, microseconds, run_driver

PACKAGES: Final = ("onnxruntime", "onnx", "onnx-ir", "numpy")
COUNTED: Final = (
    *("rounds", "completed_rounds", "interrupted_rounds", "draft_tokens_proposed", "draft_tokens_evaluated"),
    *("draft_tokens_accepted", "correction_tokens", "bonus_tokens", "tokens_queued", "tokens_emitted"),
    *("tokens_discarded", "tokens_buffered", "standard_fallback_steps", "draft_forward_passes"),
    "target_forward_passes",
)
"""Counters of the engine that count events; the others are times, ratios and the state of its controller."""


@dataclass(slots=True)
class Seen:
    """The observations of one request: by token the row before it and the growth of the counters after it."""

    tokens: list[int] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    growth: list[dict[str, int]] = field(default_factory=list)


class OrtDriver(EngineDriver):
    """The loop of one engine."""

    _model: Any = None

    def options(self, speculative: Mapping[str, Any]) -> dict[str, Any]:
        """The options of speculation as the engine keeps them."""
        return dict(self._params({"search": {}, "speculative": speculative}).get_speculative_options())

    def start(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Load the models; the engine's facts."""
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

    def answer_one(self, request: Mapping[str, Any]) -> None:
        """Generate, and say what was seen."""
        begun = time.perf_counter()
        params = self._params(request)
        seen, sequence = self._generated(params, request)
        self.say(
            {"rows": np.stack(seen.rows)} if seen.rows else None,
            op="output",
            id=request["id"],
            tokens=seen.tokens,
            sequence=sequence,
            growth=seen.growth,
            search=dict(params.get_search_options()),
            speculative=dict(params.get_speculative_options()),
            latency_us=microseconds(begun),
        )

    def _params(self, request: Mapping[str, Any]) -> Any:
        import onnxruntime_genai as og

        params = og.GeneratorParams(self._model)
        params.set_search_options(**request["search"])
        if request["speculative"]:
            params.set_speculative_options(**request["speculative"])
        return params

    def _generated(self, params: Any, request: Mapping[str, Any]) -> tuple[Seen, list[int]]:
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
            self.beat()
        return seen, [int(token) for token in generator.get_sequence(0)]


def counters(generator: Any) -> dict[str, int]:
    """The counters of a generator."""
    stats = generator.get_speculative_stats()
    return {name: int(stats[name]) for name in COUNTED}


if __name__ == "__main__":
    run_driver(OrtDriver)
