"""The driver of llama.cpp, as a program to start."""

from __future__ import annotations

from typing import Final

from engine.backends.engine_process import EngineProgram

PROGRAM: Final = EngineProgram(
    module="engine.backends.llama_cpp.driver",
    name="llama.cpp",
    package="xllamacpp",
    target="venv-llama",
)
