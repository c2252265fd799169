"""Assisted generation of transformers, recorded from outside.

`open_models` is what `engine.backends.REGISTRY` names. The package holds one file each for: settings of an arm,
declared evidence, sampling parameters, guards of signatures, hooks, observed steps, one arm, the models of a suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.backends.engine_spec import ModelSource

if TYPE_CHECKING:
    from engine.backends.transformers.models import TransformersBackend


def open_models(models: Mapping[str, ModelSource]) -> TransformersBackend:
    """Load every model of a suite.

    Raises:
        ModelError: a model that cannot be loaded; a target without a tokenizer.
    """
    # imported late: the declared evidence is read without torch
    from engine.backends.transformers.models import TransformersBackend

    return TransformersBackend(models)
