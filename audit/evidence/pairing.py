"""Pair the requests of two arms, find divergences and measure the noise between equal arms.

A divergence is judged at the first differing token, where both arms still have
the same prefix; the texts after it are not comparable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from audit.evidence.records import ArmRecord, RequestRecord, is_later_turn
from audit.stats.binomial import covered_quantile
from engine.core.sequences import agreeing
from engine.core.types import Floats
from engine.record.trace import steps_of

Margins = Callable[[RequestRecord], Floats]
"""[E] lead of each chosen token, NaN if unknown; empty if nothing is recorded."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One case in both arms."""

    candidate: RequestRecord
    baseline: RequestRecord


@dataclass(frozen=True, slots=True)
class Pairing:
    """Pairs of two arms; `unpaired` lists keys that only one arm has."""

    pairs: tuple[Pair, ...]
    unpaired: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of a pair. `token` is None if the candidate ended before the baseline.

    With `ended` the tokens agree up to the shorter length, but the ends or the texts differ.
    """

    pair: Pair
    index: int
    token: int | None
    ended: bool

    @property
    def step(self) -> int:
        """The candidate's step of the divergence."""
        for view in steps_of(self.pair.candidate.trace):
            if view.emitted.start <= self.index < view.emitted.stop:
                return view.index
        return max(0, self.pair.candidate.trace.steps - 1)


@dataclass(frozen=True, slots=True)
class MarginNoise:
    """Differences of margins between two runs of the same arm at equal prefixes.

    `bound` is the largest of `positions` differences; it covers `quantile` of such differences with 99 % confidence.
    """

    positions: int
    bound: float
    quantile: float
    flips: int
    """Positions at which the two runs of the same arm chose different tokens."""
    given: bool = False
    """True if the suite states the bound, so that it was not measured."""

    @property
    def words(self) -> str:
        """The bound and its source, in words."""
        return (
            f"{self.bound:.3g} given by the suite"
            if self.given
            else f"{self.bound:.3g} from {self.positions} positions"
        )


def pair_arms(candidate: ArmRecord, baseline: ArmRecord) -> Pairing:
    """Pair requests by case and repetition; a later turn may lack a partner, since another answer has other turns."""
    left, right = candidate.by_key(), baseline.by_key()
    pairs = tuple(Pair(left[key], right[key]) for key in left if key in right)
    every = left | right
    alone = (key for key in left.keys() ^ right.keys() if not is_later_turn(every[key].case_id))
    return Pairing(pairs, tuple(sorted(alone)))


def divergence(pair: Pair) -> Divergence | None:
    """The first divergence of the pair, or None."""
    ours, theirs = pair.candidate.tokens, pair.baseline.tokens
    shared = agreeing(ours, theirs)
    if shared < min(len(ours), len(theirs)):
        return Divergence(pair, shared, ours[shared], ended=False)
    ended_alike = len(ours) == len(theirs) and pair.candidate.finish_reason == pair.baseline.finish_reason
    # a server parses text and tool calls from the tokens, and may do so differently under speculation
    if ended_alike and pair.candidate.text == pair.baseline.text:
        return None
    return Divergence(pair, shared, ours[shared] if shared < len(ours) else None, ended=True)


def compared(pair: Pair) -> int:
    """Number of compared positions, up to and including the first difference."""
    shared = agreeing(pair.candidate.tokens, pair.baseline.tokens)
    return min(shared + 1, len(pair.candidate.tokens), len(pair.baseline.tokens))


def measure_noise(baseline: ArmRecord, controls: Sequence[ArmRecord], margins: Margins) -> MarginNoise:
    """The largest difference of margins between baseline and any control at equal prefixes."""
    parts: list[Floats] = []
    flips = 0
    for pair in (pair for control in controls for pair in pair_arms(control, baseline).pairs):
        part = _changes(pair, margins)
        parts.append(part)
        flips += bool(len(part)) and compared(pair) > agreeing(pair.candidate.tokens, pair.baseline.tokens)
    changes = np.concatenate(parts) if parts else np.empty(0)
    count = len(changes)
    return MarginNoise(count, float(changes.max()) if count else 0.0, covered_quantile(count), flips)


def _changes(pair: Pair, margins: Margins) -> Floats:
    """Changes of the lead over the positions with equal prefixes where both leads are known."""
    count = compared(pair)
    ours, theirs = margins(pair.candidate)[:count], margins(pair.baseline)[:count]
    if min(len(ours), len(theirs)) < count:
        return np.empty(0)
    # a lead is infinite where a grammar leaves one token
    with np.errstate(invalid="ignore"):
        changes = np.where(theirs == ours, 0.0, np.abs(theirs - ours))
    if count > agreeing(pair.candidate.tokens, pair.baseline.tokens):
        # a flip means that the lead passed through zero: its change is the sum of both leads
        changes[-1] = theirs[-1] + ours[-1]
    return np.asarray(changes[~np.isnan(changes)])
