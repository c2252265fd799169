"""The executors by name; the module of one is imported where it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from audit.executors.interface import Executor

LOCAL: Final = "local"
EXECUTORS: Final[Mapping[str, str]] = {
    LOCAL: "audit.executors.local:LocalExecutor",
    "ray": "audit.executors.on_ray:RayExecutor",
}


def executor(name: str) -> Executor:
    """A new executor of that name.

    Raises:
        UserError: its packages are not installed.
    """
    module, _, attribute = EXECUTORS[name].partition(":")
    made: Executor = getattr(importlib.import_module(module), attribute)()
    return made
