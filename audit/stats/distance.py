"""Total variation between partially known rows, and between a law and its tokens.

For rows known on K cells and a tail the distance lies in an interval with both ends attained: the tails may agree up to
their mass, or share no token. From tokens alone only a lower bound exists: the distance is the supremum over witness
functions, so a witness chosen on one part of the responses and measured on the other bounds it from below
(cross-fitting; the bound on the drifting mean is that of Howard et al. 2021, see sequences). Assumes p was fixed before
each token, and responses whose random numbers differ. Cost: O(K) per row, O(V) per token for the cells.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.stats.bounded_mean import drifting_lower
from engine.core.types import Floats

RANK_EDGES = (1, 2, 4, 10)
RATIO_EDGES = (-2.0, -1.0, -0.4, 0.0, 0.4, 1.0, 2.0)
CELLS = (len(RANK_EDGES) + 1) * (len(RATIO_EDGES) + 1)
CLEAR = 1.5
"""A cell joins the witness if its count is this many standard deviations off."""


@dataclass(frozen=True, slots=True)
class Distances:
    """[E] total variation of each row pair lies in [low, high]."""

    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Binned:
    """`mass` [E, CELLS] of each cell under p, `cell` [E] of the emitted token."""

    mass: Floats
    cell: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WitnessEstimate:
    """Mean total variation per token, in these contexts: an estimate from below, and its lower bound."""

    n: int
    estimate: float
    low: float
    confidence: float


def distances(p: Floats, reference: Floats) -> Distances:
    """Distances of rows known on the same cells, each [E, K]; the remaining mass is a tail of unknown shape."""
    apart = np.abs(p - reference).sum(axis=1)
    tail = np.maximum(0.0, 1.0 - p.sum(axis=1))
    other = np.maximum(0.0, 1.0 - reference.sum(axis=1))
    low, high = 0.5 * (apart + np.abs(tail - other)), 0.5 * (apart + tail + other)
    return Distances(np.minimum(1.0, low), np.minimum(1.0, high))


def top_k_distance(ids: NDArray[np.int64], p: Floats, reference_ids: NDArray[np.int64], reference: Floats) -> Distances:
    """Distance of two rows, each on its own tokens: `ids` [K] with `p` [K], `reference_ids` [L] with `reference` [L].

    A token that only one side lists counts in both tails. The result is an interval of length 1 row.
    """
    _, here, there = np.intersect1d(ids, reference_ids, assume_unique=True, return_indices=True)
    return distances(p[here][None], reference[there][None])


def binned(p: Floats, q: Floats, token: NDArray[np.int64]) -> Binned:
    """Cells by rank under p and by log q / p, the directions in which decoding faults move mass.

    Args:
        p: [E, V] the claimed law.
        q: [E, V] the draft's law, rows of NaN without a draft: those use the ranks only.
        token: [E] the emitted tokens.
    """
    rows = np.arange(len(token))
    rank = np.empty(p.shape, dtype=np.int64)
    np.put_along_axis(rank, np.argsort(-p, axis=1, kind="stable"), np.arange(p.shape[1])[None], axis=1)
    known = ~np.isnan(q[:, :1])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(known & (p > 0), np.log(q) - np.log(p), 0.0)
    cells = np.digitize(rank, RANK_EDGES) * (len(RATIO_EDGES) + 1) + np.digitize(ratio, RATIO_EDGES)
    flat = (rows[:, None] * CELLS + cells).ravel()
    mass = np.bincount(flat, weights=p.ravel(), minlength=len(token) * CELLS).astype(np.float64)
    return Binned(mass.reshape(len(token), CELLS), cells[rows, token])


def witness(tokens: Binned, fold: NDArray[np.bool_], confidence: float = 0.99) -> WitnessEstimate:
    """Lower bound of the mean total variation between the emitted and the claimed law.

    Args:
        tokens: the cells of the tokens.
        fold: [E] which half a token's response belongs to; whole responses, fixed beforehand.
        confidence: half of the error probability goes to each fold.
    """
    n = len(tokens.cell)
    half = 0.5 + confidence / 2.0
    total, bound = 0.0, 0.0
    for measured in (fold, ~fold):
        gains = _gains(tokens, _direction(tokens, ~measured), measured)
        if len(gains):
            # gains lie in [-1, 1]
            low = 2.0 * drifting_lower((gains + 1.0) / 2.0, half) - 1.0
            total += float(np.sum(gains))
            bound += max(0.0, low) * len(gains)
    return WitnessEstimate(n, total / n if n else 0.0, bound / n if n else 0.0, confidence)


def _direction(tokens: Binned, where: NDArray[np.bool_]) -> Floats:
    """[CELLS] +1 for cells with clearly too many tokens, -1 with too few, else 0."""
    mass = tokens.mass[where]
    seen = np.bincount(tokens.cell[where], minlength=mass.shape[1])
    variance = np.sum(mass * (1.0 - mass), axis=0)
    deviation = np.divide(seen - mass.sum(axis=0), np.sqrt(variance), out=np.zeros(len(seen)), where=variance > 1e-9)
    return np.asarray(np.where(np.abs(deviation) > CLEAR, np.sign(deviation), 0.0))


def _gains(tokens: Binned, direction: Floats, where: NDArray[np.bool_]) -> Floats:
    """[n] half the witness at each token minus half its mean under p: at most the distance, on average."""
    return np.asarray(np.clip(0.5 * (direction[tokens.cell[where]] - tokens.mass[where] @ direction), -1.0, 1.0))
