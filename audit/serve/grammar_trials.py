"""Grammars of strangers are compiled first in a process of their own, with limits, over a vocabulary of bytes.

A schema, an expression or a list of choices may cost any time and memory to compile. The server compiles a grammar only
after a trial within the limits, and remembers by digest how trials ended.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from audit.serve.refusals import invalid
from audit.serve.request_parser import AskedCompletion
from audit.store.base.canonical import sha256_json
from engine.core.child import ChildStopped, Script, run_script

MEMORY_BYTES: Final = 2**28
SECONDS: Final = 3
"""Of processor time, the start of the process included; the clock may take ten times as long on a busy machine."""
MOST_KEPT: Final = 1024
WORKER: Final = Path(__file__).with_name("grammar_worker.py")


class GrammarTrials:
    """The grammars that were tried; threads share it."""

    def __init__(self, seconds: int = SECONDS, memory: int = MEMORY_BYTES) -> None:
        self._seconds, self._memory = seconds, memory
        self._refusals: dict[str, str | None] = {}
        self._lock = threading.Lock()

    def require(self, grammars: Sequence[Mapping[str, Any]]) -> None:
        """Check that grammars compile together within the limits. Raises ApiRefusal: they do not."""
        digest = sha256_json(grammars)
        with self._lock:
            known, refusal = digest in self._refusals, self._refusals.get(digest)
        if not known:
            refusal = self._tried(grammars)
            with self._lock:
                self._refusals[digest] = refusal
                while len(self._refusals) > MOST_KEPT:
                    del self._refusals[next(iter(self._refusals))]
        if refusal is not None:
            raise invalid(refusal)

    def _tried(self, grammars: Sequence[Mapping[str, Any]]) -> str | None:
        script = Script(str(WORKER), 10 * self._seconds, self._memory)
        try:
            answer: Mapping[str, Any] = run_script(script, {"grammars": grammars}, str(self._seconds))
        except ChildStopped as stopped:
            much = f"{self._memory >> 20} MiB" if stopped.limit == "memory" else f"{self._seconds} s"
            return f"structured: the grammar takes more than {much} to compile; simplify it"
        refusal: str | None = answer["refusal"]
        return refusal


def grammars_of(asked: AskedCompletion) -> Iterator[dict[str, Any]]:
    """The grammar of a request, and those of the calls that it demands."""
    if asked.settings["structured"] is not None:
        yield asked.settings["structured"].document()
    if asked.tools is not None and asked.tools.demands:
        for tool in asked.tools.tools:
            yield {"json": tool.get("function", tool).get("parameters") or {"type": "object"}}
