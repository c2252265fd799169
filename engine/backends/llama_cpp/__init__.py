"""llama.cpp as a backend: its own server in a process of its own, asked over HTTP with token ids.

The server runs in `driver`, which needs xllamacpp and numpy only. An answer reports tokens, log-probabilities, and the
numbers of drafted and accepted tokens, but neither drafts nor rows. The package imports without xllamacpp and needs it
at the first request of an arm.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.backends.catalogue import BackendKind
from engine.backends.engine_spec import Backend, ModelSource
from engine.backends.llama_cpp.settings import DECLARED, WORDS, outside


def open_models(models: Mapping[str, ModelSource]) -> Backend:
    """Find every model of a suite; they are converted and loaded later.

    Raises:
        ModelError: a model that cannot be found, or that the converter does not know.
    """
    # the driver imports this package and must load neither transformers nor torch
    from engine.backends.llama_cpp.backend import LlamaBackend

    return LlamaBackend(models)


KIND = BackendKind(
    open=open_models,
    evidence=DECLARED,
    proposers=tuple(WORDS.kinds),
    rules=("greedy", "chain", "gumbel"),
    options=WORDS.schema,
    outside=outside,
)
