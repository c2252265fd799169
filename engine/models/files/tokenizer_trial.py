"""A stranger's tokenizer is built first in a process of its own, with limits, and reads some texts there.

Its rules may cost any time and memory, and its library panics at an expression that it gives up on.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from engine.core.child import ChildStopped, Script, run_script

SECONDS: Final = 60
"""Of the clock, on a busy machine; a vocabulary of 250,000 takes two."""
MEMORY_BYTES: Final = 2**29
PER_BYTE: Final = 40
"""Bytes of memory more for each byte of the file."""
WORKER: Final = Path(__file__).with_name("tokenizer_worker.py")


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer.json: equal bytes are equal files, wherever they lie."""

    sha256: str
    size: int
    path: Path = field(compare=False)


@lru_cache(maxsize=64)
def refusal(file: TokenizerFile) -> str | None:
    """Why a tokenizer cannot be used; None if it reads texts within the limits."""
    memory = MEMORY_BYTES + PER_BYTE * file.size
    try:
        job = {"text": file.path.read_text("utf-8")}
        answer: dict[str, Any] = run_script(Script(str(WORKER), SECONDS, memory), job)
    except ChildStopped as stopped:
        limits = {"time": f"takes more than {SECONDS} s", "memory": f"takes more than {memory >> 20} MiB"}
        return f"{limits.get(stopped.limit or '', 'ends the process')} on a short text"
    except (OSError, ValueError):  # whoever builds it tells the reason
        return None
    reason: str | None = answer["refusal"]
    return reason
