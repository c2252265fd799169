"""Models for OpenVINO: graphs by `build`, in float32, and the models that it does not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.backends.converted.conversion import ConversionJob, ModelConverter
from engine.backends.converted.families import require_known
from engine.backends.openvino_genai.program import PROGRAM
from engine.models.loading import OpenedSource

MODEL: Final = "openvino_model.xml"


def require_convertible(opened: OpenedSource) -> None:
    """Refuse a model that the converter does not know.

    Raises:
        ModelError: as said.
    """
    require_known(opened, "openvino")


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
    require=require_convertible,
    ours=True,
)
