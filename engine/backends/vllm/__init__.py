"""vLLM as a backend: a running engine, recorded step by step by two witnesses inside it.

An engine runs in processes of its own (`driver`, started by `process`). Its
worker (`hook_worker`) and its scheduler (`hook_scheduler`) write down every
step; what they wrote is held against each other and against what vLLM says in
public (`reconcile`) before it becomes a record (`observing`). The hooks wrap
internals of vLLM, so `guard` looks first whether these are what they were.
Imported without vLLM; needs it when an arm is first asked for something.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.backends.engine_spec import ModelSource

if TYPE_CHECKING:
    from engine.backends.vllm.models import VllmBackend


def open_models(models: Mapping[str, ModelSource]) -> VllmBackend:
    """Find every model of a suite; engines load them later.

    Raises:
        ModelError: a model that cannot be found or read.
    """
    # the driver imports this package where there is neither transformers nor torch to spare
    from engine.backends.vllm.models import VllmBackend

    return VllmBackend(models)
