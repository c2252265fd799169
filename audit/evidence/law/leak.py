"""The leak: by how much the law of emitted tokens leans towards the drafts."""

from dataclasses import dataclass

import numpy as np

from audit.evidence.law.sums import LeakSums
from audit.evidence.law.table import LawTable, moments_of
from audit.stats.anytime.scores import ScoreSums, leak_estimate_of


@dataclass(frozen=True, slots=True)
class Leak:
    """Total variation per emitted token towards `direction`."""

    direction: str
    share: float
    effect: float
    bound: float
    error: float
    """Standard error of the effect; infinite if p and q do not differ."""
    detectable: float


GREEDY = "at temperature 0 there is no law to test; see greedy_equality"


def estimate_leak(table: LawTable, confidence: float = 0.99) -> Leak:
    """Estimate the leak towards q if any q is known, else towards the argmax of p."""
    known = table.known
    columns, distance = (table.leak[known], table.distance[known, 0]) if known.any() else (table.argmax, None)
    sums = LeakSums(
        ScoreSums.of(columns[:, 0], moments_of(columns)),
        float(np.sum(columns[:, 4] - columns[:, 1])),
        float(np.sum(table.distance[:, 1] if distance is None else distance)),
    )
    return leak_of(sums, len(known), bool(known.any()), confidence)


def leak_of(sums: LeakSums, tokens: int, known: bool, confidence: float) -> Leak:
    """The leak behind the sums over those of `tokens` tokens whose q is known, or over all if none is."""
    total = sums.distance / tokens
    estimate = leak_estimate_of(sums.scores, sums.span, confidence)
    return Leak(
        direction="q" if known else "argmax of p",
        share=estimate.share,
        effect=estimate.share * total,
        bound=min(1.0, max(0.0, estimate.high)) * total,
        error=estimate.error * total if total else 0.0,
        detectable=min(1.0, estimate.detectable) * total,
    )
