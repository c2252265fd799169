"""Evaluates a module in a process without environment variables, with limits on time, memory and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from audit.gate.rego_modules import RegoModule

POLL_S: Final = 0.01
MEMORY_BYTES: Final = 2**29
TIMEOUT_S: Final = 10
"""Seconds of processor time and of the clock that a module may take."""
WORKER: Final = Path(__file__).with_name("worker.py")


class RegoFailure(Exception):
    """A module that gives no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class RegoAnswer:
    """What a module says: `allow`, and its reasons to deny."""

    allow: bool
    deny: tuple[str, ...]


def evaluate(module: RegoModule, document: Mapping[str, Any], timeout_s: int = TIMEOUT_S) -> RegoAnswer:
    """The answer of a module on the facts of a decision.

    Raises:
        RegoFailure: it does not compile, breaks a limit, or does not define `allow` and `deny` as it must.
    """
    given = json.dumps({"module": module.text, "input": document}, allow_nan=False)
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answered:
        asked.write(given.encode())
        asked.seek(0)
        # isolated: neither variables nor a file in the working folder change what the process imports
        command = [sys.executable, "-I", str(WORKER), str(timeout_s)]
        with subprocess.Popen(command, stdin=asked, stdout=answered, stderr=subprocess.DEVNULL, env={}) as process:
            try:
                _watch(process, timeout_s)
            finally:
                process.kill()
        if process.returncode != 0:
            raise RegoFailure(f"its evaluation ended with exit code {process.returncode}")
        answered.seek(0)
        text = answered.read()
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise RegoFailure("its evaluation gave no answer") from error
    if "error" in answer:
        raise RegoFailure(str(answer["error"]))
    return _answer(answer["value"])


def _watch(process: subprocess.Popen[bytes], timeout_s: int) -> None:
    """Wait until the process ends; the engine's allocator reserves too much for a limit of its own.

    Raises:
        RegoFailure: it takes too long or too much memory.
    """
    end = time.monotonic() + timeout_s
    while process.poll() is None:
        if _resident(process.pid) > MEMORY_BYTES:
            raise RegoFailure(f"its evaluation took more than {MEMORY_BYTES >> 20} MiB of memory")
        if time.monotonic() > end:
            raise RegoFailure(f"its evaluation took longer than {timeout_s} s")
        time.sleep(POLL_S)


def _resident(pid: int) -> int:
    """Bytes of memory that a process uses; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _answer(rules: Any) -> RegoAnswer:
    if not isinstance(rules, dict):
        raise RegoFailure("package specaudit has no rules")
    allow, deny = rules.get("allow"), rules.get("deny")
    if not isinstance(allow, bool):
        raise RegoFailure("rule allow is undefined or no boolean; begin with: default allow := false")
    if not isinstance(deny, list) or not all(isinstance(reason, str) for reason in deny):
        raise RegoFailure("rule deny is undefined or no set of texts; write: deny contains reason if ...")
    return RegoAnswer(allow, tuple(deny))
