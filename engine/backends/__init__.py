"""Backends, one file each, behind one protocol.

A backend is added by one file and one line in `REGISTRY`. Each entry opens the
models of a suite once: `open(models) -> Workshop`; a workshop then makes one
backend per arm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from engine.backends.arm import ModelSource, Workshop
from engine.registry import resolve

REGISTRY: Final[Mapping[str, str]] = {
    "native": "engine.backends.native:open_models",
    "scripted": "engine.backends.scripted:open_models",
}


def open_workshop(backend: str, models: Mapping[str, ModelSource]) -> Workshop:
    """Load a suite's models into a backend.

    Raises:
        InvalidRequest: unknown backend.
        ModelError: a model that cannot be loaded, named.
    """
    workshop: Workshop = resolve(REGISTRY, backend, "backend")(models)
    return workshop
