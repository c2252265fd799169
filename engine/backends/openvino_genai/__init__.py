"""OpenVINO GenAI as a backend: its continuous batching in a process of its own, read after every step.

The engine runs in `driver`, which needs openvino-genai and numpy only. A step reports the tokens that it committed and
their log-probabilities, but neither drafts nor rows. The package imports without openvino-genai and needs it at the
first request of an arm.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.backends.catalogue import BackendKind
from engine.backends.engine_spec import Backend, ModelSource
from engine.backends.openvino_genai.settings import DECLARED, WORDS, outside


def open_models(models: Mapping[str, ModelSource]) -> Backend:
    """Find every model of a suite; they are converted and loaded later.

    Raises:
        ModelError: a model that cannot be found, or that the converter does not know.
    """
    # the driver imports this package and must load neither transformers nor torch
    from engine.backends.openvino_genai.backend import OpenVinoBackend

    return OpenVinoBackend(models)


KIND = BackendKind(
    open=open_models,
    evidence=DECLARED,
    proposers=tuple(WORDS.kinds),
    rules=("greedy", "chain"),
    options=WORDS.schema,
    outside=outside,
)
