"""The parent's side of an engine that runs in a process of its own: start it, send it messages, detect its death.

The child has its own session, so ending it ends exactly the engine's processes. Its output goes to a file; if the
engine dies, the message quotes its last error line. The requests in flight are those that fail; `RestartedEngine`
starts the engine again for the next ones, a limited number of times.
"""

import contextlib
import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from engine.core.child import Frame, end, frames, spawn, write
from engine.core.errors import EngineError, ModelError

ERROR_LINE: Final = re.compile(r"([A-Za-z_.]*(Error|Exception|Killed)\b.*)")


@dataclass(frozen=True, slots=True)
class EngineProgram:
    """The module that the child runs, and the package that it needs.

    name: the engine in messages. package: the name of its module. target: the make target that installs it.
    echoes: parts of error lines that only repeat another process's failure.
    """

    module: str
    name: str
    package: str
    target: str
    echoes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """The parameters of an engine's start. `job` is the first message to it."""

    python: str
    job: Mapping[str, Any]
    start_s: float
    """Most seconds until it is ready."""
    silence_s: float
    """Seconds of silence after which it counts as hung."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a request has no answer: a kind of `engine.backends.interface.Engine.generate`, and words."""

    kind: str
    message: str


class EngineDied(Exception):
    """The engine is gone; the message holds its last words."""

    def __init__(self, message: str, timeout: bool = False) -> None:
        super().__init__(message)
        self.timeout = timeout


class EngineProcess:
    """One running engine. Raises ModelError: it could not be started; the engine's own words are in the message."""

    def __init__(self, program: EngineProgram, launch: Launch) -> None:
        self._program, self._launch = program, launch
        self.home = Path(tempfile.mkdtemp(prefix=f"specaudit-{program.package}-"))
        self._log = self.home / "log"
        self._answers: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._child = self._spawn()
        # at the latest when this process ends
        self._end = weakref.finalize(self, _end, self._child, self.home)
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self.facts: Mapping[str, Any] = self._started()
        except BaseException:
            self.close()
            raise

    def first_message(self) -> Mapping[str, Any]:
        """The job, as the child reads it."""
        return self._launch.job

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            try:
                return spawn([self._launch.python, "-m", self._program.module], self._launch.environment, log)
            except OSError as error:
                shutil.rmtree(self.home, ignore_errors=True)
                raise ModelError(
                    f"engine.python: {self._launch.python} cannot be run ({error.strerror}); "
                    f"give the interpreter of an environment with {self._program.name}"
                ) from error

    def _listen(self) -> None:
        assert self._child.stdout is not None
        with contextlib.suppress(ValueError):
            for frame in frames(self._child.stdout):
                self._answers.put(frame)
        self._answers.put(None)

    def _started(self) -> Mapping[str, Any]:
        try:
            self.tell(self.first_message())
            answer = self._next(self._launch.start_s).header
        except EngineDied as error:
            raise ModelError(self._why_not(str(error))) from error
        if answer["op"] == "failed":
            # the failing process of the engine reports the cause, the process that waits for it only the failure
            words = answer["message"]
            raise ModelError(self._why_not(self._last_words() or words if "core initialization" in words else words))
        facts: Mapping[str, Any] = answer["facts"]
        return facts

    def _why_not(self, words: str) -> str:
        program = self._program
        if f"No module named '{program.package}'" in words:
            return (
                f"{self._launch.python} has no {program.name}; run this in an environment that has it "
                f"(make {program.target} makes one), or name one under engine: {{python: PATH}}"
            )
        return f"{program.name} could not start: {words}"

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises EngineDied: nobody reads it."""
        assert self._child.stdin is not None
        try:
            write(self._child.stdin, Frame(message))
        except OSError as error:
            raise EngineDied(self._last_words() or "it no longer listens") from error

    def ask(self, message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Send a message; the headers of its answers, the last of which has op `done`. Raises as `frames`."""
        yield from (frame.header for frame in self.frames(message))

    def frames(self, message: Mapping[str, Any]) -> Iterator[Frame]:
        """Send a message; its answers, the last of which has op `done`.

        Raises:
            EngineDied: the engine ended, said that it failed, or was silent for too long.
        """
        self.tell(message)
        while True:
            frame = self._next(self._launch.silence_s)
            answer = frame.header
            if answer["op"] == "died":
                raise EngineDied(self._last_words(answer["kind"]) or f"{answer['kind']}: {answer['message']}")
            if answer["op"] != "alive":
                yield frame
            if answer["op"] == "done":
                return

    def _next(self, seconds: float) -> Frame:
        try:
            frame = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise EngineDied(f"no word for {seconds:g} s", timeout=True) from None
        if frame is None:
            code = self._child.wait()
            raise EngineDied(self._last_words() or f"it ended with exit code {code}")
        return frame

    def _last_words(self, besides: str = "EngineDeadError") -> str | None:
        """The last line of the log that names an error, other than that the engine is dead."""
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        lines = [match.group(1).strip() for match in ERROR_LINE.finditer(text)]
        # of a process that waited for the failing one
        echoes = (*self._program.echoes, besides)
        telling = [line for line in lines if not any(echo in line for echo in echoes) and _says(line)]
        return telling[-1][:300] if telling else None

    def close(self) -> None:
        """End every process of the engine, and remove what it wrote."""
        self._end()


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


def _end(child: subprocess.Popen[bytes], home: Path) -> None:
    end(child)
    shutil.rmtree(home, ignore_errors=True)


def _says(line: str) -> bool:
    """True if a line with an error's name reports the error and does not just name a file or class."""
    return bool(re.match(r"[A-Za-z_.]*(Error|Exception)(: .+)?$", line))


def interpreter(python: str, name: str) -> str:
    """The interpreter's path; `name` is the engine that it must have. Raises EngineError: there is none."""
    path = shutil.which(os.path.expanduser(python))
    if path is None:
        raise EngineError(f"engine.python: there is no interpreter {python}; give the path of one that has {name}")
    return path


def _outcome(frame: Frame) -> Frame | Failure:
    return Failure("refused", frame.header["message"]) if frame.header["op"] == "refused" else frame
