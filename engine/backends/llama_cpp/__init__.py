"""llama.cpp as a backend: its own server in a process of its own, asked over HTTP with token ids.

The server runs in `driver`, which needs xllamacpp and numpy only. An answer reports tokens, log-probabilities, and the
numbers of drafted and accepted tokens, but neither drafts nor rows. The package imports without xllamacpp and needs it
at the first request of an arm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.backends.engine_spec import ModelSource

if TYPE_CHECKING:
    from engine.backends.llama_cpp.models import LlamaBackend


def open_models(models: Mapping[str, ModelSource]) -> LlamaBackend:
    """Find every model of a suite; they are converted and loaded later.

    Raises:
        ModelError: a model that cannot be found, or that the converter does not know.
    """
    # the driver imports this package and must load neither transformers nor torch
    from engine.backends.llama_cpp.models import LlamaBackend

    return LlamaBackend(models)
