"""onnxruntime-genai as a backend: its generator in a process of its own, read after every token.

The engine runs in `driver`, which needs onnxruntime-genai and numpy only. Every token comes with the growth of the
engine's own counters, which gives each round of speculation; the ids of refused drafts are not reported. The package
imports without onnxruntime-genai and needs it at an arm's first request.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.backends.catalogue import BackendKind
from engine.backends.engine_spec import Backend, ModelSource
from engine.backends.onnxruntime_genai.settings import DECLARED, WORDS, outside


def open_models(models: Mapping[str, ModelSource]) -> Backend:
    """Find every model of a suite; they are converted and loaded later.

    Raises:
        ModelError: a model that cannot be found, or that onnxruntime-genai cannot run.
    """
    # the driver imports this package and must load neither transformers nor torch
    from engine.backends.onnxruntime_genai.backend import OrtBackend

    return OrtBackend(models)


KIND = BackendKind(
    open=open_models,
    evidence=DECLARED,
    proposers=tuple(WORDS.kinds),
    rules=("greedy", "chain"),
    options=WORDS.schema,
    outside=outside,
)
