"""Evaluates a module in a process without environment variables, with limits on time, memory and output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from audit.gate.rego_modules import RegoModule
from engine.core.child import ChildStopped, Script, run_script

MEMORY_BYTES: Final = 2**29
"""The caller watches it: the engine's allocator reserves too much for a limit of its own."""
TIMEOUT_S: Final = 10
"""Seconds of processor time and of the clock that a module may take."""
WORKER: Final = Path(__file__).with_name("worker.py")


class RegoFailure(Exception):
    """A module that gives no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class RegoAnswer:
    """A module's answer: `allow`, and reasons to deny."""

    allow: bool
    deny: tuple[str, ...]


def evaluate(module: RegoModule, document: Mapping[str, Any], timeout_s: int = TIMEOUT_S) -> RegoAnswer:
    """The answer of a module on the facts of a decision.

    Raises:
        RegoFailure: it does not compile, breaks a limit, or does not define `allow` and `deny` as it must.
    """
    script = Script(str(WORKER), timeout_s, MEMORY_BYTES)
    try:
        answer = run_script(script, {"module": module.text, "input": document}, str(timeout_s))
    except ChildStopped as stopped:
        raise RegoFailure(_ended(stopped, timeout_s)) from stopped
    if "error" in answer:
        raise RegoFailure(str(answer["error"]))
    return _answer(answer["value"])


def _ended(stopped: ChildStopped, timeout_s: int) -> str:
    if stopped.limit == "memory":
        return f"its evaluation took more than {MEMORY_BYTES >> 20} MiB of memory"
    if stopped.limit == "time":
        return f"its evaluation took longer than {timeout_s} s"
    return f"its evaluation ended with exit code {stopped.code}" if stopped.code else "its evaluation gave no answer"


def _answer(rules: Any) -> RegoAnswer:
    if not isinstance(rules, dict):
        raise RegoFailure("package specaudit has no rules")
    allow, deny = rules.get("allow"), rules.get("deny")
    if not isinstance(allow, bool):
        raise RegoFailure("rule allow is undefined or no boolean; begin with: default allow := false")
    if not isinstance(deny, list) or not all(isinstance(reason, str) for reason in deny):
        raise RegoFailure("rule deny is undefined or no set of texts; write: deny contains reason if ...")
    return RegoAnswer(allow, tuple(deny))
