"""Assisted generation of transformers, recorded from outside.

`open_models` is what `engine.backends.REGISTRY` names. The package holds one
file per idea: settings of an arm, sampling parameters, guards of signatures,
hooks, observed steps, one arm, the models of a suite. Knows nothing about suites.
"""

from engine.backends.transformers.models import open_models

__all__ = ["open_models"]
