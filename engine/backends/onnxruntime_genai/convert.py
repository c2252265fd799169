"""The engine's own builder of models (`python -m onnxruntime_genai.models.builder`), and the models that it refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.backends.onnxruntime_genai.folder import CONFIG
from engine.backends.onnxruntime_genai.settings import PROGRAM
from engine.backends.process.convert import ConversionJob, ModelConverter
from engine.core.errors import ModelError
from engine.models.loading import OpenedSource

FAMILY: Final = 16
"""The engine's attention needs a head size that this divides."""


def head_size(config: Mapping[str, Any]) -> int | None:
    """The size of an attention head; None if the configuration does not give it."""
    stated, hidden, heads = (config.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    if isinstance(stated, int):
        return stated
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None


def require_convertible(opened: OpenedSource) -> None:
    """Refuse a model that the engine cannot run.

    Raises:
        ModelError: as said.
    """
    size = head_size(opened.folder.config)
    if size is not None and size % FAMILY:
        raise ModelError(
            f"{opened.folder.name('config.json')}: head size {size} is not a multiple of {FAMILY}, which the attention "
            "of onnxruntime-genai needs; use another model, such as bundled:medium_draft"
        )


def builder_arguments(job: ConversionJob) -> Sequence[str]:
    """Those of the builder, for float32 on a CPU and without a network."""
    places = ["-i", str(job.source), "-o", str(job.out), "-c", str(job.cache)]
    return ["-m", "model", *places, "-p", "fp32", "-e", "cpu", "--extra_options", "hf_remote=false"]


CONVERTER: Final = ModelConverter(
    kind="onnx",
    program=PROGRAM,
    module="onnxruntime_genai.models.builder",
    arguments=builder_arguments,
    result=CONFIG,
    packages=("onnxruntime-genai", "onnxruntime", "onnx", "onnx-ir", "torch", "transformers"),
    require=require_convertible,
)
