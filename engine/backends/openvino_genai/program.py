"""The driver of OpenVINO GenAI, as a program to start."""

from __future__ import annotations

from typing import Final

from engine.backends.engine_process import EngineProgram

PROGRAM: Final = EngineProgram(
    module="engine.backends.openvino_genai.driver",
    name="openvino-genai",
    package="openvino_genai",
    target="venv-openvino",
)
