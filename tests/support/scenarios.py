"""Engines of fault scenarios, for tests without a suite."""

from engine.backends.engine_spec import EngineSpec
from engine.faults.interface import Scenario


def engine_spec(scenario: Scenario, fault: str | None = None) -> EngineSpec:
    """The engine spec of the scenario, with or without a fault."""
    names = scenario.draft_names
    return EngineSpec(
        scenario.protocol,
        scenario.proposer,
        scenario.gamma,
        names[0] if names else None,
        scenario.options,
        scenario.rows,
        fault=fault,
        others=names[1:],
        beside=scenario.beside,
        stream=scenario.stream,
    )
