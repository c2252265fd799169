"""Assisted generation of transformers, recorded from outside.

The package holds one file each for: settings of an arm,
declared evidence, sampling parameters, guards of signatures, hooks, observed steps, one arm, the models of a suite.
"""

from collections.abc import Mapping

from engine.backends.catalogue import BackendKind
from engine.backends.engine_spec import Backend, ModelSource
from engine.backends.transformers.settings import DECLARED


def open_models(models: Mapping[str, ModelSource]) -> Backend:
    """Load every model of a suite. Raises ModelError: a model that cannot be loaded; a target without a tokenizer."""
    # imported late: the declared evidence is read without torch
    from engine.backends.transformers.models import TransformersBackend

    return TransformersBackend(models)


KIND = BackendKind(
    open=open_models,
    evidence=DECLARED,
    proposers=("draft_model", "prompt_lookup", "early_exit", "universal", "mtp", "dflash"),
    rules=("greedy", "chain"),
    options="engine-transformers",
)
