"""The driver of mlx_lm, as a program to start."""

from __future__ import annotations

from typing import Final

from engine.backends.engine_process import EngineProgram

PROGRAM: Final = EngineProgram(
    module="engine.backends.mlx_lm.driver",
    name="mlx_lm",
    package="mlx_lm",
    target="venv-mlx",
)
