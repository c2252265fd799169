"""The executors by name; the module of one is imported where it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from audit.executors.interface import Executor

LOCAL: Final = "local"
SLURM: Final = "slurm"
EXECUTORS: Final[Mapping[str, str]] = {
    LOCAL: "audit.executors.local:LocalExecutor",
    "ray": "audit.executors.on_ray:RayExecutor",
    SLURM: "audit.executors.on_slurm:SlurmExecutor",
}


def executor(name: str, *options: object) -> Executor:
    """A new executor of that name, with what its constructor takes.

    Raises:
        UserError: its packages are not installed, or it cannot work on this machine.
    """
    module, _, attribute = EXECUTORS[name].partition(":")
    made: Executor = getattr(importlib.import_module(module), attribute)(*options)
    return made
