"""Assisted generation of transformers, recorded from outside.

The package holds one file each for: settings of an arm,
declared evidence, sampling parameters, guards of signatures, hooks, observed steps, one arm, the models of a suite.
"""

from engine.backends.catalogue import BackendKind, opener
from engine.backends.transformers.settings import DECLARED

KIND = BackendKind(
    open=opener("engine.backends.transformers.models:TransformersBackend"),
    evidence=DECLARED,
    proposers=("draft_model", "prompt_lookup", "early_exit", "universal", "mtp", "dflash"),
    rules=("greedy", "chain"),
    options="engine-transformers",
)
