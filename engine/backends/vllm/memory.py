"""The memory that an engine on a CPU takes, and whether so much is free.

Weights count with the size of their files: the module does not know that a dtype wider than theirs needs more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

GIB: Final = 2**30
PROCESSES: Final = int(1.6 * GIB)
"""An engine's three processes without weights and cache, by the proportional set size of vLLM 0.32 on Linux."""
WEIGHTS: Final = ("*.safetensors", "*.bin")


def needed(arguments: Mapping[str, Any]) -> int:
    """Bytes that an engine with these arguments takes at least."""
    draft = (arguments.get("speculative_config") or {}).get("model")
    folders = [Path(arguments["model"]), *([Path(draft)] if draft else [])]
    return PROCESSES + int(arguments["kv_cache_memory_bytes"]) + sum(map(_weights, folders))


def _weights(folder: Path) -> int:
    """Bytes of the weights; 0 for a model that is no folder, such as a proposer's class."""
    return sum(path.stat().st_size for pattern in WEIGHTS for path in folder.glob(pattern))


def require_memory(arguments: Mapping[str, Any], free: int) -> None:
    """Raise MemoryError unless an engine with these arguments fits into `free` bytes."""
    least = needed(arguments)
    if least > free:
        raise MemoryError(
            f"one more engine needs {least / GIB:.1f} GiB of memory, {free / GIB:.1f} GiB are free; "
            "write a smaller engines or kv_cache_gib under engine, or end other programs"
        )


def free_memory() -> int:
    """Bytes that programs can still take without swapping."""
    import psutil  # vLLM requires it; this package does not

    return int(psutil.virtual_memory().available)
