"""Sums over a token's laws beside the cells and the largest scores that are kept of them, at record level `topk`.

Cells hold the likeliest tokens of p and of q in single precision, `tail` the mass outside them. Each sum over whole
laws lies between what the cells give alone and what they give with the whole tails.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from audit.evidence.structure import Violation
from engine.core.types import Floats
from engine.record.columns import numbered
from engine.record.rows.lumping import PAD
from engine.record.trace import Trace

ROUNDED: Final = 1e-5
"""Absolute rounding of a sum over cells."""


@dataclass(frozen=True, slots=True)
class BoundedSum:
    """[E] a recorded sum, and the least and the largest value that the cells allow; NaN where they say nothing."""

    values: Floats
    least: Floats
    most: Floats


def cell_faults(trace: Trace) -> Iterator[Violation]:
    """The sums of each emitted token that its cells do not allow."""
    steps = numbered(trace.n_emitted).step
    for name, one in _sums(trace).items():
        # a mask that allows one token makes its margin infinite, in the record and in the cells
        slack = np.where(np.isinf(one.least), 0.0, ROUNDED * (1 + np.abs(one.least)))
        with np.errstate(invalid="ignore"):
            outside = ~((one.values >= one.least - slack) & (one.values <= one.most + slack))
        for at in np.flatnonzero(outside & ~(np.isnan(one.least) & np.isnan(one.values))).tolist():
            limits = f"{one.least[at]:.6g} to {one.most[at]:.6g}"
            yield Violation(
                int(steps[at]), f"token {int(trace.token[at])}: {name} {one.values[at]:.10g}, its cells allow {limits}"
            )


def _sums(trace: Trace) -> Mapping[str, BoundedSum]:
    used = trace.cell_id != PAD
    p = np.where(used, trace.cell_p, 0.0).astype(np.float64)
    # a row of cells without a q is NaN, and so is everything that follows from it
    q = np.where(used, trace.cell_q, 0.0).astype(np.float64)
    tail_p, tail_q = 1.0 - p.sum(axis=1), 1.0 - q.sum(axis=1)
    own = used & (trace.cell_id == trace.token[:, None])
    idle_p, idle_q = (np.where(used, 0.0, np.abs(cells)).sum(axis=1) for cells in (trace.cell_p, trace.cell_q))
    before = used & (trace.cell_id < trace.token[:, None])
    held = np.where(own, q, 0.0).sum(axis=1) + 0.0 * tail_q
    product, more = (p * q).sum(axis=1), np.maximum(p - q, 0.0)
    surplus, below = more.sum(axis=1), np.where(before, more, 0.0).sum(axis=1) + 0.0 * tail_q
    with np.errstate(invalid="ignore"):
        lead = trace.top_score[:, 0] - trace.top_score[:, 1]
    return {
        "unused p": BoundedSum(idle_p, 0.0 * idle_p, 0.0 * idle_p),
        "unused q": BoundedSum(idle_q + 0.0 * tail_q, 0.0 * tail_q, 0.0 * tail_q),
        "tail 0": BoundedSum(trace.tail[:, 0], tail_p, tail_p),
        "tail 1": BoundedSum(trace.tail[:, 1], tail_q, tail_q),
        "q_token": BoundedSum(trace.q_token, held, np.where(own.any(axis=1), held, tail_q)),
        "product": BoundedSum(trace.product, product, product + tail_p * tail_q),
        "residual_below": BoundedSum(trace.residual_below, below, below + tail_p),
        "residual_sum": BoundedSum(trace.residual_sum, surplus + np.maximum(tail_p - tail_q, 0.0), surplus + tail_p),
        "top_lse": _score_sum(trace),
        "margin": BoundedSum(trace.margin, lead, lead),
    }


def _score_sum(trace: Trace) -> BoundedSum:
    """The logarithm of the sum over all scores: at least that of the largest, at most with all others as the least."""
    scores = trace.top_score / (trace.header.sampling.temperature or 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        least = np.logaddexp.reduce(scores, axis=1)
        others = np.log(np.maximum(trace.header.vocabulary - scores.shape[1], 0)) + scores[:, -1]
    return BoundedSum(trace.top_lse, least, np.logaddexp(least, others))
