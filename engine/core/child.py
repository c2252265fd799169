"""Child processes: their start, the frames that they exchange, their limits and their end.

A frame is a JSON header with arrays behind it, each with its length in front; reading one never runs code. A child
that a backend starts may have another environment, so only frames cross: pickles are for pools of this program's own
workers.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

if TYPE_CHECKING:
    from numpy.typing import NDArray

LENGTH: Final = struct.Struct("<Q")
MOST: Final = 2**40
"""A greater length indicates a damaged stream."""
POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


Inbox: TypeAlias = "queue.SimpleQueue[Frame | None]"


class TruncatedStream(Exception):
    """The stream ended inside a message: its writer died."""


def write(stream: IO[bytes], frame: Frame) -> None:
    """Write one message and flush it."""
    arrays = {name: array if array.flags.c_contiguous else array.copy() for name, array in frame.arrays.items()}
    shapes = {name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()}
    head = json.dumps({"header": dict(frame.header), "arrays": shapes}).encode()
    stream.write(LENGTH.pack(len(head)) + head)
    for array in arrays.values():
        stream.write(array.data.cast("B") if array.size else b"")
    stream.flush()


def read(stream: IO[bytes]) -> Frame | None:
    """The next message; None at the end of the stream. Raises TruncatedStream: the stream ends inside a message."""
    start = stream.read(LENGTH.size)
    if not start:
        return None
    if len(start) < LENGTH.size:
        raise TruncatedStream
    document = json.loads(_exactly(stream, LENGTH.unpack(start)[0]))
    arrays = {name: _array(stream, kind, shape) for name, (kind, shape) in document["arrays"].items()}
    return Frame(document["header"], arrays)


def _array(stream: IO[bytes], kind: str, shape: list[int]) -> NDArray[Any]:
    # imported late: commands that run a query need no arrays
    import numpy as np

    data = _exactly(stream, math.prod(shape) * np.dtype(kind).itemsize)
    # a copy: arrays over bytes are read-only, and a record's reduction writes into rows
    return np.frombuffer(data, dtype=kind).reshape(shape).copy()


def _exactly(stream: IO[bytes], size: int) -> bytes:
    if size > MOST:
        raise TruncatedStream
    data = stream.read(size)
    if len(data) < size:
        raise TruncatedStream
    return data


def frames(stream: IO[bytes]) -> Iterator[Frame]:
    """All whole messages of a stream."""
    with contextlib.suppress(TruncatedStream):
        while (frame := read(stream)) is not None:
            yield frame


def spawn(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a child with pipes, in a session of its own: Ctrl-C on the terminal is for this process only.

    `environment` is added to this process's own, in which another Python finds this project; stderr goes to `log`.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=with_project(environment),
        start_new_session=True,
    )


def with_project(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process and `more`, in which another Python finds this project."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return {**os.environ, **more, "PYTHONPATH": path}


def end(child: subprocess.Popen[bytes]) -> None:
    """End a child of `spawn` and every process that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def serve_parent(serve: Callable[[Inbox, BinaryIO], None]) -> None:
    """In a child of `spawn`: serve until stdin ends, because the parent closed it or died; then end the whole group.

    Standard output is for frames alone: whatever else is printed goes to stderr.
    """
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, inbox), daemon=True).start()
    serve(inbox, out)
    out.close()
    _end_group()


def _listen(stream: BinaryIO, inbox: Inbox) -> None:
    """Forward messages; after the last one, end the process group even in the middle of an answer."""
    try:
        for frame in frames(stream):
            inbox.put(frame)
    finally:
        _end_group()


def _end_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def pool_worker(quiet: bool = False) -> None:
    """The initializer of a pool's worker, which ends with its parent; `quiet` workers discard stderr.

    Ctrl-C reaches the parent too, which ends its workers. Whatever a library prints is no data of the command.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.dup2(2, 1)
    threading.Thread(target=_follow, daemon=True).start()


def end_pool(pool: ProcessPoolExecutor) -> None:
    """End a pool and its workers at once; what they have not finished is cancelled."""
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class ChildStopped(Exception):
    """A program of `run_script` that gave no answer.

    limit: the limit that it broke, `time` or `memory`; None if it ended by itself, with exit code `code`.
    """

    def __init__(self, limit: str | None, code: int = 0) -> None:
        super().__init__(limit or f"exit code {code}")
        self.limit, self.code = limit, code


@dataclass(frozen=True, slots=True)
class Script:
    """A file to run in an isolated interpreter: no variable and no file in the working folder changes what it imports.

    seconds: of the clock. memory: bytes that are resident; None leaves its memory to itself.
    """

    path: str
    seconds: float
    memory: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def run_script(script: Script, job: Mapping[str, Any], *arguments: str) -> Any:
    """Give a script JSON on stdin; its JSON from stdout. It is ended at its limits, and with an exception here.

    Raises:
        ChildStopped: it gave no answer.
    """
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answered:
        asked.write(json.dumps(job).encode())
        asked.seek(0)
        command, quiet = [sys.executable, "-I", script.path, *arguments], subprocess.DEVNULL
        environment = dict(script.environment)
        with subprocess.Popen(command, stdin=asked, stdout=answered, stderr=quiet, env=environment) as process:
            try:
                _watch(process, script)
            finally:
                process.kill()
        answered.seek(0)
        try:
            answer = json.loads(answered.read()) if process.returncode == 0 else None
        except ValueError:
            answer = None
    if answer is None:
        raise ChildStopped(None, process.returncode)
    return answer


def _watch(process: subprocess.Popen[bytes], limits: Script) -> None:
    """Wait until a process ends; raises ChildStopped: it takes too long or too much memory."""
    deadline = time.monotonic() + limits.seconds
    while process.poll() is None:
        if limits.memory is not None and _resident(process.pid) > limits.memory:
            raise ChildStopped("memory")
        if time.monotonic() > deadline:
            raise ChildStopped("time")
        time.sleep(POLL_S)


def _resident(pid: int) -> int:
    """Bytes of memory that a process uses; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
