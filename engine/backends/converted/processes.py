"""One engine in a process of its own: its start, and requests that survive its death.

The requests in flight when the engine dies are those that fail; the engine is started again for the next ones, a
limited number of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.backends.engine_process import EngineDied, EngineProcess, EngineProgram, Failure, Launch
from engine.backends.frames import Frame
from engine.core.errors import ModelError


class RestartedEngine:
    """The process of one arm's engine, started at its first use and again after a death.

    Args:
        program: the driver.
        launch: its start.
        restarts: most deaths that it recovers from.
    """

    def __init__(self, program: EngineProgram, launch: Launch, restarts: int) -> None:
        self.program = program
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
            self._running = EngineProcess(self.program, self._launch)
        return self._running

    def options(self, speculative: Mapping[str, Any]) -> Mapping[str, Any]:
        """The engine's options of speculation after these were set.

        Raises:
            ModelError: the engine refuses them or died.
        """
        name = self.program.name
        try:
            answer, _done = self._engine().frames({"op": "options", "speculative": dict(speculative)})
        except EngineDied as error:
            self.close()
            raise ModelError(f"{name} died: {error}") from error
        if answer.header["op"] == "refused":
            raise ModelError(f"{name} refuses {dict(speculative)}: {answer.header['message']}")
        kept: Mapping[str, Any] = answer.header["kept"]
        return kept

    def answers(self, messages: Sequence[Mapping[str, Any]], rows: int = 1) -> Iterator[Frame | Failure]:
        """One answer or failure for every request, in their order; `rows` requests run at a time.

        Raises:
            EngineError: the engine cannot be started again.
        """
        for start in range(0, len(messages), rows):
            yield from self._answers(messages[start : start + rows])

    def _answers(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[Frame | Failure]:
        if len(self._deaths) > self._restarts:
            died = f"the engine died {len(self._deaths)} times, the last time of: {self._deaths[-1]}"
            yield from [Failure("not_tried", f"not tried: {died}")] * len(messages)
            return
        answers: dict[str, Frame] = {}
        failure = Failure("malformed", "the engine gave no answer")
        try:
            for frame in self._engine().frames({"op": "generate", "requests": list(messages)}):
                if frame.header["op"] != "done":
                    answers[frame.header["id"]] = frame
        except EngineDied as error:
            self._deaths.append(str(error))
            self.close()
            failure = Failure("timeout" if error.timeout else "engine_died", str(error))
        for message in messages:
            yield _outcome(answers[message["id"]]) if message["id"] in answers else failure

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._running.close()
            self._running = None


def _outcome(frame: Frame) -> Frame | Failure:
    return Failure("refused", frame.header["message"]) if frame.header["op"] == "refused" else frame
