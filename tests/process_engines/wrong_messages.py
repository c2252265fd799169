"""Faults between a suite and its engine: messages are changed on their way, and the echo of settings is not.

An interpreter with such a fault is a script; Python runs `sitecustomize` of the folder beside it, which calls `plant`
in the engine's process. Imports neither pytest nor any engine.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.process_engines.planted import interpreter_with

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Wire:
    """The places of an engine's messages.

    body: holds the prompt. settings: of sampling, in a request. echo: the settings in an answer.
    """

    body: tuple[str, ...]
    settings: tuple[str, ...]
    echo: tuple[str, ...] | None
    temperature: str = "temperature"
    other: float = 1.0
    """Another temperature than the suite's."""
    draws: tuple[str, ...] = ()
    """Settings that are true where the engine draws."""


WIRES: Final[Mapping[str, Wire]] = {
    "llama_cpp": Wire(("body",), ("body",), ("answer", "generation_settings")),
    "onnxruntime_genai": Wire((), ("search",), ("search",), draws=("do_sample",)),
    "openvino_genai": Wire((), ("options",), ("options",), draws=("do_sample",)),
    "mlx_lm": Wire((), ("sampling", "sampler"), None, "temp", 2.0),
}
SENT: Final[Mapping[str, Callable[[dict[str, Any], Wire], None]]] = {
    "prompt-cut": lambda request, wire: _lengthen(request, wire, -1),
    "prompt-longer": lambda request, wire: _lengthen(request, wire, 1),
    "temperature": lambda request, wire: _set(
        request, wire, {wire.temperature: wire.other, **dict.fromkeys(wire.draws, True)}
    ),
    "top-p": lambda request, wire: _set(request, wire, {"top_p": 1.0}),
}
"""Faults of a request."""
SCORES: Final = "scores-of-another-position"
"""The fault of an answer: every number or row is that of the place before."""
WEIGHTS: Final = "other-weights"


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        document = document[name]
    return document


def _lengthen(request: dict[str, Any], wire: Wire, by: int) -> None:
    body = _at(request, wire.body)
    body["prompt"] = body["prompt"][-by:] if by < 0 else [*body["prompt"][:by], *body["prompt"]]
    if "max_length" in _at(request, wire.settings):
        _at(request, wire.settings)["max_length"] += by


def _set(request: dict[str, Any], wire: Wire, values: Mapping[str, Any]) -> None:
    _at(request, wire.settings).update(values)


def _restored(answer: dict[str, Any], asked: dict[str, Any], given: dict[str, Any], wire: Wire) -> None:
    """Let the answer speak of the request that the suite sent."""
    if wire.echo is not None:
        echo, settings = _at(answer, wire.echo), _at(asked, wire.settings)
        echo.update({name: value for name, value in settings.items() if name in echo and name != "prompt"})
    prompt, other = (len(_at(request, wire.body)["prompt"]) for request in (asked, given))
    if "sequence" in answer:
        answer["sequence"] = [*asked["prompt"], *answer["sequence"][other:]]
    if "answer" in answer:
        answer["answer"]["tokens_evaluated"] += prompt - other
        answer["answer"]["timings"]["prompt_n"] += prompt - other


def _moved(answer: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Give every place the number or the row of the place before it."""
    if "rows" in arrays:
        arrays["rows"] = arrays["rows"][[0, *range(len(arrays["rows"]) - 1)]]
    if answer.get("logprob"):
        answer["logprob"] = [answer["logprob"][0], *answer["logprob"][:-1]]
    places = answer.get("answer", {}).get("completion_probabilities", [])
    numbers = [place["logprob"] for place in places]
    for place, number in zip(places[1:], numbers, strict=False):
        place["logprob"] = number


def plant(backend: str, fault: str, source: str | None = None) -> None:
    """Let the engine's process have the fault; `source` is the folder of other weights."""
    from engine.backends.process import driver

    wire, asked = WIRES[backend], {}
    start, say = driver.EngineDriver.__init__, driver.EngineDriver.say

    class ChangedInbox:
        def __init__(self, inbox: Any) -> None:
            self._inbox = inbox

        def get(self) -> Any:
            frame = self._inbox.get()
            if frame is None:
                return None
            header = copy.deepcopy(dict(frame.header))
            if header["op"] == "start" and fault == WEIGHTS:
                header["target"] = {"folder": source, "files": {}}
            for request in header.get("requests", ()):
                before = copy.deepcopy(request)
                if fault in SENT:
                    SENT[fault](request, wire)
                asked[request["id"]] = before, copy.deepcopy(request)
            return dataclasses.replace(frame, header=header)

    def begin(self: Any, inbox: Any, out: Any) -> None:
        start(self, ChangedInbox(inbox), out)

    def answer(self: Any, arrays: Any = None, **header: Any) -> None:
        if header["op"] == "output":
            header, arrays = copy.deepcopy(header), dict(arrays or {})
            _restored(header, *asked[header["id"]], wire)
            if fault == SCORES:
                _moved(header, arrays)
        say(self, arrays, **header)

    driver.EngineDriver.__init__, driver.EngineDriver.say = begin, answer  # type: ignore[method-assign]


def interpreter(folder: Path, python: str, backend: str, fault: str, source: Path | None = None) -> str:
    """The path of an interpreter with the fault; `folder` is new."""
    arguments = json.dumps([backend, fault, None if source is None else str(source)])
    lines = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.process_engines.wrong_messages import plant
plant(*json.loads({arguments!r}))
"""
    return interpreter_with(folder, python, lines)
