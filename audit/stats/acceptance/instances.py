"""Instances of one engine compared, and one instance over its requests: acceptance, trend, and a silent end.

`pair_changes` bounds the change of acceptance between every two instances, paired by prompt; over all pairs the chance
that any interval misses is at most alpha (Bonferroni). `index_trend` tests whether a ratio changes with the place of a
request in its run: within a stratum, requests are permuted, so the test is exact if they come in no particular order
there. `silent_end` gives the exact chance of a silent end of at least that length if the requests without a draft were
anywhere. Cost: pairs times prompts; replicates times requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from audit.stats.acceptance.drift import AcceptanceCounts, acceptance_drift
from audit.stats.clusters import ClusterInterval, cluster_sums, jackknife_interval
from engine.core.types import Floats

REPLICATES = 9999


@dataclass(frozen=True, slots=True)
class PairChange:
    """Acceptance of instance `second` minus that of `first`, by their places in the list."""

    first: int
    second: int
    change: ClusterInterval


@dataclass(frozen=True, slots=True)
class IndexTrend:
    """A ratio over the requests of a run.

    p: two-sided, that requests in no particular order show this trend. change: the ratio in the second half of every
    stratum minus that in the first.
    """

    p: float
    change: ClusterInterval


@dataclass(frozen=True, slots=True)
class SilentEnd:
    """Of `requests`, `silent` have no draft, the last `trailing` among them; `p` is the chance of so long an end."""

    requests: int
    silent: int
    trailing: int
    p: float


def pair_changes(instances: Sequence[AcceptanceCounts], alpha: float) -> tuple[PairChange, ...]:
    """The change between every two instances; all intervals hold together with probability 1 - alpha.

    Raises:
        ValueError: the instances did not answer the same prompts, or one drafted nothing.
    """
    pairs = list(combinations(range(len(instances)), 2))
    confidence = 1.0 - alpha / max(1, len(pairs))
    return tuple(
        PairChange(one, other, acceptance_drift(instances[other], instances[one], confidence)) for one, other in pairs
    )


def index_trend(
    counts: Floats,
    of: Floats,
    stratum: NDArray[np.int64],
    prompt: NDArray[np.int64],
    generator: np.random.Generator,
    confidence: float = 0.99,
    replicates: int = REPLICATES,
) -> IndexTrend | None:
    """Test whether sum(counts) / sum(of) changes with the index [n] of a request; None without two in a stratum.

    The statistic is the covariance, within strata, of the index with the count minus its stratum's share of `of`.
    """
    place = np.arange(len(counts), dtype=np.float64)
    away, left = np.zeros(len(counts)), np.zeros(len(counts))
    late = np.zeros(len(counts), dtype=np.int64)
    groups = [np.flatnonzero(stratum == one) for one in np.unique(stratum)]
    groups = [group for group in groups if len(group) > 1 and of[group].sum() > 0]
    for group in groups:
        away[group] = place[group] - place[group].mean()
        left[group] = counts[group] - counts[group].sum() / of[group].sum() * of[group]
        late[group[len(group) // 2 :]] = 1
    if not groups:
        return None
    used = np.concatenate(groups)
    statistic = abs(float(away @ left))
    drawn = np.zeros(replicates)
    for group in groups:
        order = np.argsort(generator.random((replicates, len(group))), axis=1)
        drawn += left[group][order] @ away[group]
    reached = int(np.sum(np.abs(drawn) >= statistic * (1.0 - 1e-9) - 1e-9))
    change = _between_halves(counts[used], of[used], late[used], prompt[used], confidence)
    return None if change is None else IndexTrend((1 + reached) / (1 + replicates), change)


def _between_halves(
    counts: Floats, of: Floats, late: NDArray[np.int64], prompt: NDArray[np.int64], confidence: float
) -> ClusterInterval | None:
    """Ratio of the late requests minus that of the others, by the jackknife over prompts."""
    columns = np.column_stack([counts * (1 - late), of * (1 - late), counts * late, of * late])
    sums = cluster_sums(columns, prompt)
    total = sums.sum(axis=0)
    if min(total[1], total[3]) <= 0:
        return None
    rest = total - sums
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = rest[:, 2] / rest[:, 3] - rest[:, 0] / rest[:, 1]
    return jackknife_interval(total[2] / total[3] - total[0] / total[1], left_out, len(counts), confidence)


def silent_end(drafting: NDArray[np.bool_]) -> SilentEnd:
    """The end of a run [n] without drafts, and its chance if the silent requests were in any order."""
    n, silent = len(drafting), int(np.sum(~drafting))
    placed = np.flatnonzero(drafting)
    trailing = n - 1 - int(placed[-1]) if len(placed) else n
    return SilentEnd(n, silent, trailing, prod((silent - i) / (n - i) for i in range(trailing)))
