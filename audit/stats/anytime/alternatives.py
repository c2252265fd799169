"""A mixture e-process over named faults: valid at any stopping time; its leading component names the fault.

Each alternative is a law r that is fixed before the token Y is drawn, so the product of r(Y) / p(Y) is a nonnegative
martingale under the claim Y ~ p, and so is the prior-weighted average of all products. By Ville's inequality (1939) it
ever reaches 1 / alpha with probability at most alpha. Finding alternative k takes about (log(1 / alpha) - log(weight of
k)) / KL(r_k || p) tokens. Exact, no asymptotics. Rows may be whole vocabularies or cells of one, such as the top
entries of p and q and a tail: lumping keeps every martingale. Cost: O(C) per token for the base laws and one addition
per token and alternative; state is O(K), independent of the length of the run. The caller must ensure that every flag
was fixed before its token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from engine.core.types import Floats

DRAFT_LEAKS = (0.003, 0.01, 0.03, 0.1, 0.3, 0.9)
EXPONENTS = (0.7, 0.85, 0.95, 1.05, 1.15, 1.4)
ARGMAX_LEAKS = (0.01, 0.03, 0.1, 0.3)
REPEATS = (0.01, 0.05, 0.2)
ROW_LEAKS = (0.01, 0.1, 0.5, 0.9)
REFUSED_LEAKS = (0.01, 0.1, 0.5)
LAST_DEPTH = 7
"""Block positions from this one on form one stratum."""
WHOLE_RUN = 0.5
"""Prior share of the alternatives that hold for every token; the strata share the rest."""
_ROWS = 2048
NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class AnytimeTest:
    """Log wealth after `n` numbers, its maximum over time, and p = exp(-maximum), valid at any stopping time."""

    n: int
    log_final: float
    log_max: float
    p: float
    crossing: int | None
    """Count of numbers when wealth first reached 1 / alpha; None if it did not."""
    leader: str
    """The bet with the largest final wealth."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """E consecutive tokens on C cells each; everything but `token` was fixed before `token` was drawn."""

    p: Floats
    """[E, C] the claimed law; p(token) > 0."""
    q: Floats
    """[E] the draft's probability of the token's cell; NaN without a draft."""
    previous: Floats
    """[E] the probability of the token's cell at the previous position; NaN at the start of a request."""
    token: NDArray[np.int64]
    """[E] cell of the emitted token."""
    depth: NDArray[np.int64]
    """[E] position in the block."""
    bonus: NDArray[np.bool_]
    """[E] all drafted tokens before this position were accepted."""
    last: NDArray[np.bool_]
    """[E] last drafted position of its block; all False if the drafted tokens decide the draft's length."""
    repeated: NDArray[np.int64]
    """[E] cell of the previous token, or NO_TOKEN."""
    refused: NDArray[np.int64]
    """[E] cell of the draft token refused here, or refused one position earlier, or NO_TOKEN.

    A token refused here depends on the decision. That is valid for rules that never make a refused token more likely,
    such as rejection sampling: the product is then a supermartingale.
    """


@dataclass(frozen=True, slots=True)
class WealthState:
    """State after the tokens so far; O(K) numbers. `extend` returns a new state."""

    n: int
    alpha: float
    log_wealth: Floats
    """[K] log of each alternative's product."""
    log_max: float
    crossing: int | None
    crossed_by: str
    """The leader when the average first reached 1 / alpha; empty if it has not."""

    @property
    def log_final(self) -> float:
        """Log of the average after the last token."""
        return float(_averages(self.log_wealth[None])[0]) if self.n else 0.0


@dataclass(frozen=True, slots=True)
class NamedAlternative:
    """One alternative with its log wealth and its share of the average."""

    name: str
    log_e: float
    share: float


@dataclass(frozen=True, slots=True)
class _Family:
    """Laws of one kind. `ratios` gives the log likelihood ratios [E, len(names)] of a chunk."""

    names: tuple[str, ...]
    ratios: Callable[[Chunk], Floats]
    at_depths: bool = True
    at_bonus: bool = True
    at_last: bool = False


@dataclass(frozen=True, slots=True)
class _Dictionary:
    """Column k is the base law `base[k]`, played only where the stratum is `stratum[k]`."""

    names: tuple[str, ...]
    base: NDArray[np.int64]
    stratum: NDArray[np.int64]
    log_weights: Floats


_ALWAYS, _BONUS, _LAST = -1, LAST_DEPTH + 1, LAST_DEPTH + 2


def start(alpha: float = 0.01) -> WealthState:
    """The state before any token. `alpha` decides only what counts as a crossing."""
    return WealthState(0, alpha, np.zeros(len(NAMES)), 0.0, None, "")


@dataclass(frozen=True, slots=True)
class LogRatios:
    """E consecutive tokens, read: [E, B] log ratios of the base laws, and the strata of each token's place."""

    base: Floats
    depth: NDArray[np.int8]
    last: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: slice) -> LogRatios:
        """Some of the tokens."""
        return LogRatios(self.base[rows], self.depth[rows], self.last[rows])


def log_ratios_of(chunk: Chunk) -> LogRatios:
    """Read a chunk; this part of `extend` depends on the chunk alone.

    Raises:
        ValueError: a token has no probability: a finding, not evidence.
    """
    own = _own(chunk)
    if np.any(own <= 0):
        raise ValueError(f"token {int(np.argmin(own))} of the chunk has no probability: a finding, not evidence")
    base = np.concatenate([family.ratios(chunk) for family in _FAMILIES], axis=1)
    depth = np.where(chunk.bonus, _BONUS, np.minimum(chunk.depth, LAST_DEPTH))
    return LogRatios(base, depth.astype(np.int8), chunk.last)


def grown(evidence: WealthState, ratios: LogRatios) -> WealthState:
    """The evidence after further tokens. The division of a run into chunks does not matter."""
    for begin in range(0, len(ratios), _ROWS):
        evidence = _extend(evidence, ratios[begin : begin + _ROWS])
    return evidence


def summary(evidence: WealthState) -> AnytimeTest:
    """The test so far. `leader` is the best over all tokens; early leaders are often only close to the fault."""
    leader = ranking(evidence, 1)[0].name if evidence.n else ""
    p = math.exp(-evidence.log_max)
    return AnytimeTest(evidence.n, evidence.log_final, evidence.log_max, p, evidence.crossing, leader)


def ranking(evidence: WealthState, count: int = 5) -> tuple[NamedAlternative, ...]:
    """The alternatives with the largest shares of the average, largest first."""
    logs = evidence.log_wealth + _TABLE.log_weights
    shares = np.exp(logs - scipy.special.logsumexp(logs))
    order = np.argsort(-logs, kind="stable")[:count]
    return tuple(NamedAlternative(NAMES[k], float(evidence.log_wealth[k]), float(shares[k])) for k in order)


def _spread(ratios: LogRatios) -> Floats:
    """[E, K] log r(Y) / p(Y), columns as in `NAMES`, 0 if an alternative does not differ from p."""
    active = (_TABLE.stratum == _ALWAYS) | (_TABLE.stratum == ratios.depth[:, None])
    active |= (_TABLE.stratum == _LAST) & ratios.last[:, None]
    return np.where(active, ratios.base[:, _TABLE.base], 0.0)


def _extend(evidence: WealthState, ratios: LogRatios) -> WealthState:
    last, largest = _growth(ratios)
    after = replace(evidence, n=evidence.n + len(ratios), log_wealth=evidence.log_wealth + last)
    # the average seldom reaches a new maximum, and it costs K exponentials per token
    if _at_most(evidence.log_wealth + largest) <= evidence.log_max:
        return after
    paths = evidence.log_wealth + np.cumsum(_spread(ratios), axis=0)
    average = _averages(paths)
    crossing, leader = evidence.crossing, evidence.crossed_by
    if crossing is None and float(np.max(average)) >= -math.log(evidence.alpha):
        at = int(np.argmax(average >= -math.log(evidence.alpha)))
        crossing, leader = evidence.n + at + 1, NAMES[int(np.argmax(paths[at] + _TABLE.log_weights))]
    return replace(after, log_max=max(evidence.log_max, float(np.max(average))), crossing=crossing, crossed_by=leader)


def _growth(ratios: LogRatios) -> tuple[Floats, Floats]:
    """Growth of each alternative's log wealth [K] by a chunk: at its end, and at most on the way.

    Sums over the tokens of each stratum alone: the others add exact zeros.
    """
    base, last, largest = ratios.base, np.zeros(len(NAMES)), np.zeros(len(NAMES))
    for stratum, columns in _COLUMNS.items():
        rows = base if stratum == _ALWAYS else base[ratios.last if stratum == _LAST else ratios.depth == stratum]
        if len(rows):
            sums = np.cumsum(rows[:, _TABLE.base[columns]], axis=0)
            last[columns], largest[columns] = sums[-1], np.maximum(sums.max(axis=0), 0.0)
    return last, largest


def _at_most(log_wealth: Floats) -> float:
    """An upper bound of `_averages` of rows that are nowhere larger, far above rounding; NaN if one is NaN."""
    logs = log_wealth + _TABLE.log_weights
    largest = float(logs.max())
    bound = largest + float(np.log(np.exp(logs - largest).sum()))
    return bound + 1e-9 * (1.0 + abs(bound))


def _averages(paths: Floats) -> Floats:
    """[E] log of the weighted average of the wealths whose logs are `paths` [E, K]."""
    return np.asarray(scipy.special.logsumexp(paths + _TABLE.log_weights, axis=1))


def _leaks(text: str, shares: tuple[float, ...], towards: Callable[[Chunk], Floats], **where: bool) -> _Family:
    """Laws r = (1 - l) p + l s for such shares l, where s(Y) is `towards` [E]; NaN where nothing leaks."""
    names = named_values(text, shares)
    return _Family(names, lambda chunk: leak_ratios(towards(chunk) / _own(chunk) - 1.0, shares), **where)


def leak_ratios(surplus: Floats, shares: tuple[float, ...]) -> Floats:
    """[E, len(shares)] of r = (1 - l) p + l s, `surplus` [E] being s(Y) / p(Y) - 1, NaN without s."""
    known = np.where(np.isnan(surplus), 0.0, surplus)
    return np.asarray(np.log1p(np.asarray(shares) * known[:, None]))


def _own(chunk: Chunk) -> Floats:
    return np.asarray(chunk.p[np.arange(len(chunk.token)), chunk.token])


def _point(chunk: Chunk, cell: NDArray[np.int64]) -> Floats:
    return np.where(cell == NO_TOKEN, np.nan, cell == chunk.token)


def _tilt(chunk: Chunk) -> Floats:
    own = np.log(_own(chunk))
    # a third of the cells may have no probability, and exponentials are what this costs
    possible = chunk.p != 0.0
    logs, powers = np.log(chunk.p[possible]), np.zeros_like(chunk.p)
    columns = []
    for power in EXPONENTS:
        powers[possible] = np.exp(power * logs)
        columns.append((power - 1.0) * own - np.log(np.sum(powers, axis=1)))
    return np.stack(columns, axis=1)


def named_values(text: str, values: tuple[float, ...]) -> tuple[str, ...]:
    """The names of alternatives that differ in a number."""
    return tuple(f"{text} {value:g}" for value in values)


_FAMILIES = (
    _leaks("draft leak", DRAFT_LEAKS, lambda chunk: chunk.q, at_bonus=False, at_last=True),
    _Family(named_values("p to the power", EXPONENTS), _tilt),
    _leaks("argmax leak", ARGMAX_LEAKS, lambda chunk: _point(chunk, np.argmax(chunk.p, axis=1))),
    _leaks("repeat of the previous token", REPEATS, lambda chunk: _point(chunk, chunk.repeated)),
    _leaks("previous row", ROW_LEAKS, lambda chunk: chunk.previous),
    # refusals form their own stratum
    _leaks(
        "refused draft token",
        REFUSED_LEAKS,
        lambda chunk: _point(chunk, chunk.refused),
        at_depths=False,
        at_bonus=False,
    ),
)


def _strata(family: _Family) -> tuple[int, ...]:
    depths = tuple(range(LAST_DEPTH + 1)) if family.at_depths else ()
    last = (_LAST,) if family.at_last else ()
    return (_ALWAYS, *depths, *((_BONUS,) if family.at_bonus else ()), *last)


def _prefix(stratum: int) -> str:
    special = {_ALWAYS: "", _BONUS: "bonus: ", _LAST: "last draft: ", LAST_DEPTH: f"position {LAST_DEPTH} and on: "}
    return special.get(stratum, f"position {stratum}: ")


def _dictionary() -> _Dictionary:
    names: list[str] = []
    base: list[int] = []
    stratum: list[int] = []
    offset = 0
    for family in _FAMILIES:
        for where in _strata(family):
            names.extend(_prefix(where) + name for name in family.names)
            base.extend(range(offset, offset + len(family.names)))
            stratum.extend([where] * len(family.names))
        offset += len(family.names)
    whole = np.array(stratum) == _ALWAYS
    weights = np.where(whole, WHOLE_RUN / whole.sum(), (1.0 - WHOLE_RUN) / (~whole).sum())
    return _Dictionary(tuple(names), np.array(base), np.array(stratum), np.log(weights))


_TABLE = _dictionary()
_COLUMNS = {int(stratum): np.flatnonzero(_TABLE.stratum == stratum) for stratum in np.unique(_TABLE.stratum)}
"""The alternatives of each stratum."""
NAMES = _TABLE.names
"""[K] every alternative, in the order of `Evidence.log_wealth`."""
