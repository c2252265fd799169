"""The driver of onnxruntime-genai, as a program to start."""

from __future__ import annotations

from typing import Final

from engine.backends.engine_process import EngineProgram

PROGRAM: Final = EngineProgram(
    module="engine.backends.onnxruntime_genai.driver",
    name="onnxruntime-genai",
    package="onnxruntime_genai",
    target="venv-ort",
)
