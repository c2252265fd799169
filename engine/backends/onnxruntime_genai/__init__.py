"""onnxruntime-genai as a backend: its generator in a process of its own, read after every token.

The engine runs in `driver`, which needs onnxruntime-genai and numpy only. Every token comes with the growth of the
engine's own counters, which gives each round of speculation; the ids of refused drafts are not reported. The package
imports without onnxruntime-genai and needs it at an arm's first request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.backends.engine_spec import ModelSource

if TYPE_CHECKING:
    from engine.backends.onnxruntime_genai.models import OrtBackend


def open_models(models: Mapping[str, ModelSource]) -> OrtBackend:
    """Find every model of a suite; they are converted and loaded later.

    Raises:
        ModelError: a model that cannot be found, or that onnxruntime-genai cannot run.
    """
    # the driver imports this package and must load neither transformers nor torch
    from engine.backends.onnxruntime_genai.models import OrtBackend

    return OrtBackend(models)
