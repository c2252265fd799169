"""OpenVINO GenAI as a backend: its continuous batching in a process of its own, read after every step.

The engine runs in `driver`, which needs openvino-genai and numpy only. A step reports the tokens that it committed and
their log-probabilities, but neither drafts nor rows. The package imports without openvino-genai and needs it at the
first request of an arm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.backends.engine_spec import ModelSource

if TYPE_CHECKING:
    from engine.backends.openvino_genai.models import OpenVinoBackend


def open_models(models: Mapping[str, ModelSource]) -> OpenVinoBackend:
    """Find every model of a suite; they are converted and loaded later.

    Raises:
        ModelError: a model that cannot be found, or that the converter does not know.
    """
    # the driver imports this package and must load neither transformers nor torch
    from engine.backends.openvino_genai.models import OpenVinoBackend

    return OpenVinoBackend(models)
