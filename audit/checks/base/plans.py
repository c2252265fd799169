"""Evidence needed by checks of counts and of means with a known spread.

Each function is a check's `plan`; `Design.assumed` holds its assumptions. A power of
0.9 means that nine of ten clean runs of that size are certified.
"""

import dataclasses
from collections.abc import Callable
from typing import Final

from audit.checks.base.interface import Design
from audit.evidence.verdicts import Params
from audit.stats.power import MOST, POWER, replay_effect, replay_need, score_need, zero_need
from audit.stats.sample_size import SampleSize
from engine.core.types import Protocol, RecordLevel

ACCEPTANCE_SPREAD: Final = 0.35
"""Standard deviation of one decision of known probability. The bundled pair gives 0.09 (ngram) to 0.31
(draft model)."""
LEAK_SPREAD: Final = 0.2
"""Standard deviation of the leak per token, in total variation. The bundled pair gives 0.03 (ngram) to 0.15
(draft model)."""

SPARSE: Final = (Protocol.GREEDY, Protocol.CHAIN, Protocol.GUMBEL)
"""Rules whose decisions level `topk` lets `replay` recompute."""


def at_least(parameter: str, unit: str) -> Callable[[Params, Design], SampleSize | None]:
    """The plan of a check with a minimum number of units and zero tolerance."""

    def plan(params: Params, _design: Design) -> SampleSize | None:
        units = int(params[parameter])
        # the smallest effect that this many units would show
        return SampleSize(units, unit, replay_effect(units), 0.0, POWER) if units else None

    return plan


def none_of(unit: str, asks: Callable[[Design], object]) -> Callable[[Params, Design], SampleSize | None]:
    """Units without an event until the bound of their share is within the margin, for the arms that `asks` is for."""

    def plan(params: Params, design: Design) -> SampleSize | None:
        need = zero_need(float(params["margin"]), unit, 1.0 - float(params["confidence"]))
        return need if asks(design) else None

    return plan


def plan_requests(params: Params, _design: Design) -> SampleSize | None:
    """Requests without an event until the bound of its share is within the margin; a margin of 1 asks for none."""
    margin = float(params["margin"])
    return zero_need(margin, "requests") if margin < 1.0 else None


def plan_replay(_params: Params, design: Design) -> SampleSize | None:
    """One decision is enough if every decision can be recomputed."""
    need = replay_need(1.0)
    sparse = design.record is RecordLevel.TOPK and (design.greedy or design.shown.protocol in SPARSE)
    return need if sparse or design.record is RecordLevel.FULL else dataclasses.replace(need, units=MOST)


def plan_acceptance(params: Params, design: Design) -> SampleSize | None:
    """Positions until both ends of the rate's interval are within the margin."""
    if design.greedy or not design.gamma:
        return None
    spread, alpha = design.assumed.spread or ACCEPTANCE_SPREAD, 1.0 - float(params["confidence"])
    # both ends must lie within the margin: the estimate may err to either side
    return _certified(score_need(float(params["margin"]), spread**2, 1.0, alpha, (1.0 + POWER) / 2.0, "positions"))


def plan_law(params: Params, design: Design) -> SampleSize | None:
    """Tokens until the leak's upper bound is within the margin."""
    if design.greedy:
        return None
    spread, alpha = design.assumed.spread or LEAK_SPREAD, 1.0 - float(params["confidence"])
    # a one-sided bound at alpha is the upper end of a two-sided interval at twice that
    need = _certified(score_need(float(params["leak_margin"]), spread**2, 1.0, 2.0 * alpha))
    return dataclasses.replace(need, units=max(need.units, int(params["min_tokens"])), alpha=alpha)


def _certified(need: SampleSize) -> SampleSize:
    return dataclasses.replace(need, power=POWER)
