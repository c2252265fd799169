"""Runs a suite of one candidate in memory and returns the evidence for its checks.

Uses the same planning, preparation and engine as `audit run`, without a store.
"""

import functools

from audit.evidence.records import Evidence
from audit.runs.in_memory import all_evidence, candidate_of, run_arm
from audit.runs.prepare import PreparedArm, build_arms
from audit.suite.spec import Suite
from engine.backends import open_backend
from engine.backends.engine_spec import Backend, ModelSource


def gather(suite: Suite) -> Evidence:
    """Run the candidate, its baseline, its control and its companions.

    Raises:
        EngineError: the engine cannot run an arm.
    """
    return all_evidence(prepared(suite))


def alone(suite: Suite) -> Evidence:
    """Run the candidate alone, for checks that need nothing else. Raises EngineError: the engine cannot run it."""
    return Evidence(run_arm(candidate_of(prepared(suite)), {}))


def prepared(suite: Suite) -> tuple[PreparedArm, ...]:
    """The arms of a suite, ready to run."""
    return build_arms(suite, _workshop(suite))


def _workshop(suite: Suite) -> Backend:
    if suite.backend == "scripted":
        return open_backend(suite.backend, suite.models)
    return _loaded(suite.backend, tuple(suite.models.items()))


@functools.lru_cache(maxsize=4)
def _loaded(backend: str, named: tuple[tuple[str, ModelSource], ...]) -> Backend:
    """Cache the backend: models with weights take seconds to load, and every seed uses the same."""
    return open_backend(backend, dict(named))
