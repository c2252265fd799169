"""A mixture e-process over named faults for texts of which only the tokens are on record, beside the target's p.

As in `audit.stats.anytime.alternatives`, each alternative is a law r that is fixed before the token Y is drawn, and the
prior-weighted average of the products of r(Y) / p(Y) reaches 1 / alpha with probability at most alpha at any stopping
time. Blocks, drafts and q are unknown here, so the alternatives are about the text alone. Each takes the exact mass of
the emitted token, or cells with a tail. Cost: O(C) per token and direction; memory O(E K).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.stats.anytime.alternatives import NO_TOKEN, AnytimeTest, NamedAlternative, leak_ratios, named_values
from engine.core.types import Floats

EXPONENTS: Final = (0.6, 0.8, 0.9, 1.1, 1.25, 1.6)
ARGMAX_LEAKS: Final = (0.01, 0.03, 0.1, 0.3, 0.6)
ARGMAX_LOSSES: Final = (0.03, 0.1, 0.3)
REPEATS: Final = (0.01, 0.05, 0.2)
ROW_LEAKS: Final = (0.03, 0.1, 0.3, 0.9)
COPIES: Final = (0.01, 0.05, 0.2)
UNIFORM_LEAKS: Final = (0.003, 0.03)
PLAIN_LEAKS: Final = (0.1, 0.3, 0.9)


@dataclass(frozen=True, slots=True)
class TokenRows:
    """E consecutive tokens of one request; everything but `token`, `p_token` and what belongs to it was fixed before
    the token was drawn.
    """

    cells: Floats
    """[E, C] the target's law on cells; the last may be a tail."""
    cell: NDArray[np.int64]
    """[E] cell of the emitted token."""
    p_token: Floats
    """[E] exact p of the emitted token; above 0."""
    top: NDArray[np.bool_]
    """[E] the emitted token is the most likely one."""
    top_mass: Floats
    """[E] p of the most likely token."""
    previous: Floats
    """[E] the probability of the token's cell at the previous position; NaN at the start of a request."""
    token: NDArray[np.int64]
    """[E]"""
    repeated: NDArray[np.int64]
    """[E] the previous token, or NO_TOKEN."""
    copied: NDArray[np.int64]
    """[E] the token that a lookup in the text so far would draft, or NO_TOKEN."""
    plain: Floats
    """[E] probability of the emitted token before every transform; NaN if no transform is on."""
    vocabulary: int


@dataclass(frozen=True, slots=True)
class FaultFamily:
    """Alternatives of one kind. `ratios` gives r(Y) / p(Y) as logarithms [E, len(names)]."""

    names: tuple[str, ...]
    ratios: Callable[[TokenRows], Floats]


@dataclass(frozen=True, slots=True)
class MixtureResult:
    """The test, and the alternatives with the largest shares of the average, largest first."""

    test: AnytimeTest
    leaders: tuple[NamedAlternative, ...]


def log_ratios(rows: TokenRows) -> Floats:
    """[E, K] log r(Y) / p(Y) of one request, 0 where an alternative does not differ from p."""
    return np.concatenate([family.ratios(rows) for family in DIRECTIONS], axis=1)


def mixture(ratios: Floats, alpha: float) -> MixtureResult:
    """The average over all alternatives after `ratios` [E, K]; each kind has the same prior share."""
    names = [name for family in DIRECTIONS for name in family.names]
    sizes = [len(family.names) for family in DIRECTIONS]
    weights = np.log(np.concatenate([np.full(size, 1.0 / len(DIRECTIONS) / size) for size in sizes]))
    n = len(ratios)
    if not n:
        return MixtureResult(AnytimeTest(0, 0.0, 0.0, 1.0, None, ""), ())
    paths = np.cumsum(ratios, axis=0) + weights
    average = scipy.special.logsumexp(paths, axis=1)
    crossed = np.flatnonzero(average >= -math.log(alpha))
    log_max = max(0.0, float(np.max(average)))
    shares = np.exp(paths[-1] - average[-1])
    order = np.argsort(-shares, kind="stable")[:5]
    leaders = tuple(NamedAlternative(names[k], float(paths[-1, k] - weights[k]), float(shares[k])) for k in order)
    first = int(crossed[0]) + 1 if len(crossed) else None
    test = AnytimeTest(n, float(average[-1]), log_max, math.exp(-log_max), first, leaders[0].name)
    return MixtureResult(test, leaders)


def _leaks(text: str, shares: tuple[float, ...], surplus: Callable[[TokenRows], Floats]) -> FaultFamily:
    """Alternatives that mix such shares of another law into p; `surplus` as `leak_ratios` takes it."""
    return FaultFamily(named_values(text, shares), lambda rows: leak_ratios(surplus(rows), shares))


def _point(rows: TokenRows, point: NDArray[np.int64]) -> Floats:
    hit = np.where(point == rows.token, 1.0 / rows.p_token, 0.0) - 1.0
    return np.where(point == NO_TOKEN, np.nan, hit)


def _argmax_loss(rows: TokenRows) -> Floats:
    """The most likely token loses a share of its mass to all others."""
    mass, top = rows.top_mass[:, None], rows.top
    shares = np.asarray(ARGMAX_LOSSES)
    # a one-token law has no other token to shift mass to
    single = mass > 1.0 - 1e-9
    other = np.log1p(shares * mass / np.where(single, 1.0, 1.0 - mass))
    return np.asarray(np.where(single, 0.0, np.where(top[:, None], np.log1p(-shares), other)))


def _previous(rows: TokenRows) -> Floats:
    return np.asarray(rows.previous / rows.cells[np.arange(len(rows.cell)), rows.cell] - 1.0)


def _power(rows: TokenRows) -> Floats:
    with np.errstate(divide="ignore"):
        logs = np.log(rows.cells)
    own = logs[np.arange(len(rows.cell)), rows.cell]
    columns = [(power - 1.0) * own - np.log(np.sum(np.exp(power * logs), axis=1)) for power in EXPONENTS]
    return np.stack(columns, axis=1)


DIRECTIONS: Final = (
    FaultFamily(named_values("p to the power", EXPONENTS), _power),
    _leaks("argmax leak", ARGMAX_LEAKS, lambda rows: np.where(rows.top, 1.0 / rows.p_token, 0.0) - 1.0),
    FaultFamily(named_values("argmax loss", ARGMAX_LOSSES), _argmax_loss),
    _leaks("repeat of the previous token", REPEATS, lambda rows: _point(rows, rows.repeated)),
    _leaks("previous row", ROW_LEAKS, _previous),
    _leaks("copy from the text", COPIES, lambda rows: _point(rows, rows.copied)),
    _leaks("any token", UNIFORM_LEAKS, lambda rows: 1.0 / (rows.vocabulary * rows.p_token) - 1.0),
    _leaks("law without parameters", PLAIN_LEAKS, lambda rows: rows.plain / rows.p_token - 1.0),
)
