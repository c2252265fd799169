"""Rejected tokens are kept with a small probability: an exact mixture (1 - e) p + e q at drafted places.

The hardest faults to see: a rate of e takes about 1 / e decisions to replay and 1 / e^2 tokens to test.
"""

from __future__ import annotations

from engine.faults.chain_walk import ChainWalk, Origin, Trial, accepts, chain_fault
from engine.faults.interface import Fault
from engine.sampling.rng import Purpose


def _lenient(name: str, rate: float) -> Fault:
    def accept(trial: Trial) -> bool:
        return accepts(trial) or trial.numbers.uniform(trial.position, Purpose.ACCEPT, 1) < rate

    origin = Origin("none known: stands for a rare race or rounding that lets a token through")
    return chain_fault(name, origin, lambda facts: ChainWalk(facts, accept=accept))


TENTH = _lenient("lenient_10_percent", 0.1)
HUNDREDTH = _lenient("lenient_1_percent", 0.01)
THOUSANDTH = _lenient("lenient_0_1_percent", 0.001)
