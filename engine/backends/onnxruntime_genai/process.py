"""One engine in a process of its own: its composed folder, its start, and requests that survive its death.

Requests run one after another, so the request in flight when the engine dies is the one that fails; the engine is
started again for the next one, a limited number of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from engine.backends.engine_process import EngineDied, EngineProcess, EngineProgram, Failure, Launch
from engine.backends.frames import Frame
from engine.core.errors import ModelError

PROGRAM: Final = EngineProgram(
    module="engine.backends.onnxruntime_genai.driver",
    name="onnxruntime-genai",
    package="onnxruntime_genai",
    target="venv-ort",
)


class OrtProcesses:
    """The process of one arm's engine, started at its first use and again after a death.

    Args:
        launch: its start.
        restarts: most deaths that it recovers from.
    """

    def __init__(self, launch: Launch, restarts: int) -> None:
        self._launch, self._restarts = launch, restarts
        self._running: EngineProcess | None = None
        self._facts: Mapping[str, Any] | None = None
        self._deaths: list[str] = []

    @property
    def started(self) -> bool:
        """True if the engine has been started before."""
        return self._facts is not None

    def facts(self) -> Mapping[str, Any]:
        """The engine's facts from its first start; starts it if it never ran."""
        if self._facts is None:
            self._facts = self._engine().facts
        return self._facts

    def _engine(self) -> EngineProcess:
        if self._running is None:
            self._running = EngineProcess(PROGRAM, self._launch)
        return self._running

    def options(self, speculative: Mapping[str, Any]) -> Mapping[str, Any]:
        """The engine's options of speculation after these were set.

        Raises:
            ModelError: the engine refuses them or died.
        """
        try:
            answer, _done = self._engine().frames({"op": "options", "speculative": dict(speculative)})
        except EngineDied as error:
            self.close()
            raise ModelError(f"onnxruntime-genai died: {error}") from error
        if answer.header["op"] == "refused":
            raise ModelError(f"onnxruntime-genai refuses {dict(speculative)}: {answer.header['message']}")
        kept: Mapping[str, Any] = answer.header["kept"]
        return kept

    def answers(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[Frame | Failure]:
        """One answer or failure for every request, in their order.

        Raises:
            EngineError: the engine cannot be started again.
        """
        for message in messages:
            yield self._answer(message)

    def _answer(self, message: Mapping[str, Any]) -> Frame | Failure:
        if len(self._deaths) > self._restarts:
            died = f"the engine died {len(self._deaths)} times, the last time of: {self._deaths[-1]}"
            return Failure("not_tried", f"not tried: {died}")
        try:
            answer, _done = self._engine().frames({"op": "generate", "requests": [message]})
        except EngineDied as error:
            self._deaths.append(str(error))
            self.close()
            return Failure("timeout" if error.timeout else "engine_died", str(error))
        if answer.header["op"] == "refused":
            return Failure("refused", answer.header["message"])
        return answer

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._running.close()
            self._running = None
