"""A mixture e-process: evidence against p that may be watched while it grows.

For any law r_t fixed before token Y_t is drawn, the product of r_t(Y_t) / p_t(Y_t)
is a nonnegative martingale with mean 1, and so is an average of such products.
By Ville's inequality (1939) its maximum over time reaches 1 / alpha with
probability at most alpha, whenever one stops. The alternatives are explicit, so
the leading one names the likely fault: a leak of the draft, a changed
temperature, a leak of the argmax. Exact, no asymptotics. Cost: O(V) per token
and alternative. Knows nothing about block positions or roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from engine.types import Floats

LEAKS = (0.05, 0.2, 0.9)
EXPONENTS = (0.7, 0.9, 1.1, 1.4)


@dataclass(frozen=True, slots=True)
class EProcess:
    """`p` is valid at any stopping time; `leader` is the alternative with the largest final product."""

    n: int
    log_max: float
    p: float
    leader: str


def log_ratios(p: Floats, q: Floats, token: NDArray[np.int64]) -> dict[str, Floats]:
    """[E] log r(Y) / p(Y) of each alternative.

    Args:
        p: [E, V] the claimed law; p(token) > 0.
        q: [E, V] the draft's law, rows of NaN where none is known.
        token: [E] the emitted tokens.
    """
    rows = np.arange(len(token))
    own = p[rows, token]
    known = ~np.isnan(q[:, 0]) if q.size else np.zeros(len(token), dtype=np.bool_)
    draft = np.where(known, q[rows, token] / own, 1.0)
    top = np.where(p.argmax(axis=1) == token, 1.0 / own, 0.0)
    found = {f"draft leak {share}": np.log1p(share * (draft - 1.0)) for share in LEAKS}
    found |= {f"argmax leak {share}": np.log1p(share * (top - 1.0)) for share in LEAKS}
    for exponent in EXPONENTS:
        total = np.sum(np.where(p > 0, p, 0.0) ** exponent, axis=1)
        found[f"p to the power {exponent}"] = (exponent - 1.0) * np.log(own) - np.log(total)
    return found


def mixture(ratios: Mapping[str, Floats]) -> EProcess:
    """The average of the products of `ratios`, each [E], and its maximum over time."""
    names = list(ratios)
    steps = np.stack([ratios[name] for name in names]) if names else np.empty((0, 0))
    if steps.shape[-1] == 0:
        return EProcess(0, 0.0, 1.0, "")
    paths = np.cumsum(steps, axis=1)
    average = logsumexp(paths, axis=0) - np.log(len(names))
    log_max = max(0.0, float(np.max(average)))
    return EProcess(paths.shape[1], log_max, float(np.exp(-log_max)), names[int(np.argmax(paths[:, -1]))])
