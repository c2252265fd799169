"""Lookup in the literal registries: ``name -> "module:Class"``, imported on use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from engine.core.errors import InvalidRequest


def resolve(registry: Mapping[str, str], name: str, kind: str) -> Any:
    """The object behind a registered name.

    Raises:
        InvalidRequest: the name is not registered; the message lists those that are.
    """
    if name not in registry:
        raise InvalidRequest(f"unknown {kind} {name!r}; known: {', '.join(sorted(registry))}")
    module, _, attribute = registry[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
