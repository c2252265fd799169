"""All requests of a run draw the same numbers, as if each had been given the run's seed alone."""

from __future__ import annotations

from engine.faults.broken_numbers import numbers_fault
from engine.faults.chain_walk import Origin
from engine.faults.interface import Scenario, Suits
from engine.sampling.rng import Randomness

FAULT = numbers_fault(
    "requests_share_numbers",
    Origin("none known: what one seed for all requests gives in engines that key by the seed alone"),
    lambda seed, _stream: Randomness(seed, 0),
    Suits(needs=("several requests",)),
    Scenario(),
)
