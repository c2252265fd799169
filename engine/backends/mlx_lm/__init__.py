"""mlx_lm as a backend: its library in a process of its own, read token by token.

The engine runs in `driver`, which needs mlx, mlx_lm, numpy and blake3 only. Every token comes with the target's row and
with the engine's word on whether it was drafted; the sampler, which callers of the library give, sees the drafts too.
The package imports without mlx_lm and needs it at the first request of an arm.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.backends.catalogue import BackendKind
from engine.backends.engine_spec import Backend, ModelSource
from engine.backends.mlx_lm.settings import DECLARED, WORDS, outside


def open_models(models: Mapping[str, ModelSource]) -> Backend:
    """Find every model of a suite; the engine loads them later.

    Raises:
        ModelError: a model that cannot be found.
    """
    # the driver imports this package and must load neither transformers nor torch
    from engine.backends.mlx_lm.backend import MlxBackend

    return MlxBackend(models)


KIND = BackendKind(
    open=open_models,
    evidence=DECLARED,
    proposers=tuple(WORDS.kinds),
    rules=("greedy", "chain"),
    options=WORDS.schema,
    outside=outside,
)
