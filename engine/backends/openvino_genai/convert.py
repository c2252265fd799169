"""Models for OpenVINO: graphs by `build`, in float32, and the models that it does not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.backends.converted.conversion import ConversionJob, ModelConverter
from engine.backends.openvino_genai.program import PROGRAM
from engine.core.errors import ModelError
from engine.models.loading import OpenedSource

FAMILIES: Final = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
MODEL: Final = "openvino_model.xml"


def require_known(opened: OpenedSource) -> None:
    """Refuse a model that the converter does not know.

    Raises:
        ModelError: as said.
    """
    problem = unknown(opened.folder.config)
    if problem is not None:
        raise ModelError(f"{opened.folder.name('config.json')}: the converter to openvino {problem}; use another model")


def unknown(config: Mapping[str, Any]) -> str | None:
    """What the converter does not know in a configuration."""
    family = (config.get("architectures") or ["none"])[0]
    if family not in FAMILIES:
        return f"knows {', '.join(FAMILIES)}, not {family}"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        return f"knows plain rotary positions only, not {rope.get('rope_type', rope.get('type'))}"
    if config.get("hidden_act", "silu") != "silu":
        return f"knows hidden_act silu, not {config['hidden_act']}"
    return "knows no sliding windows" if config.get("use_sliding_window") else None


def build_arguments(job: ConversionJob) -> Sequence[str]:
    """Those of `build`."""
    return [str(job.source), str(job.out)]


CONVERTER: Final = ModelConverter(
    kind="openvino",
    program=PROGRAM,
    module="engine.backends.openvino_genai.build",
    arguments=build_arguments,
    result=MODEL,
    packages=("openvino", "openvino-genai", "openvino-tokenizers", "transformers"),
    require=require_known,
    ours=True,
)
