"""Second implementation of the verification rules, from their definitions, for the replay.

This module does not call the engine's verifiers, so that a fault there cannot hide itself. It shares only
`engine.sampling.transforms` (the transforms, the inverse distribution function) and `engine.sampling.rng` (the numbers)
with the engine, and never sees the recorded decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.core.types import Examined, Floats, Protocol, Role
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import TransformedRow, inverse_cdf

NAN: Final = float("nan")


@dataclass(frozen=True, slots=True)
class OfferedToken:
    """One drafted token at a place; `q` [V] is None if unknown."""

    node: int
    token: int
    q: Floats | None


@dataclass(frozen=True, slots=True)
class DecisionPlace:
    """Place of one decision: absolute position, the target's row, the drafted tokens."""

    position: int
    row: TransformedRow
    offers: tuple[OfferedToken, ...]
    empty: bool
    """True if the step drafted nothing."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """Decision of the rule at a place."""

    token: int
    role: Role
    uniform: float
    tried: tuple[Examined, ...]
    residual_mass: float = NAN


Rule = Callable[[DecisionPlace, Randomness], Ruling]


def chain(place: DecisionPlace, randomness: Randomness) -> Ruling:
    """Rejection sampling: accept iff u q(x) < p(x), else draw from max(p - q, 0)."""
    p = place.row.p
    if not place.offers:
        u = randomness.uniform(place.position, Purpose.BONUS)
        return Ruling(inverse_cdf(p, u), _last_role(place), u, ())
    offer = place.offers[0]
    if offer.q is None:
        raise LookupError(f"drafted token {offer.token} has no q, the chain rule cannot be applied")
    p_x, q_x = float(p[offer.token]), float(offer.q[offer.token])
    u = randomness.uniform(place.position, Purpose.ACCEPT)
    accepted = u * q_x < p_x
    tried = (Examined(offer.node, p_x, q_x, u, accepted),)
    if accepted:
        return Ruling(offer.token, Role.ACCEPTED, NAN, tried)
    left = np.maximum(p - offer.q, 0.0)
    mass = float(left.sum())
    u = randomness.uniform(place.position, Purpose.RESIDUAL)
    return Ruling(inverse_cdf(left if mass > 0 else p, u), Role.RECOVERED, u, tried, mass)


def tree(place: DecisionPlace, randomness: Randomness) -> Ruling:
    """For each sibling in turn: accept iff u q(x) < p'(x), else p' becomes max(p' - q, 0), normalised."""
    left, mass = place.row.p, NAN
    tried: list[Examined] = []
    for order, offer in enumerate(place.offers):
        if offer.q is None:
            raise LookupError(f"drafted token {offer.token} has no q, the tree rule cannot be applied")
        p_x, q_x = float(left[offer.token]), float(offer.q[offer.token])
        u = randomness.uniform(place.position, Purpose.ACCEPT, order)
        accepted = u * q_x < p_x
        tried.append(Examined(offer.node, p_x, q_x, u, accepted))
        if accepted:
            return Ruling(offer.token, Role.ACCEPTED, NAN, tuple(tried))
        over = np.maximum(left - offer.q, 0.0)
        mass = float(over.sum())
        if mass == 0:
            break
        left = over / mass
    u = randomness.uniform(place.position, Purpose.RESIDUAL if tried else Purpose.BONUS)
    return Ruling(inverse_cdf(left, u), _last_role(place), u, tuple(tried), mass)


def greedy(place: DecisionPlace, _randomness: Randomness) -> Ruling:
    """The argmax of the scores, the lowest id on ties."""
    return _match(place, int(np.argmax(place.row.scores)))


def gumbel(place: DecisionPlace, randomness: Randomness) -> Ruling:
    """The target's own sample: argmax of log p plus the position's noise, over p > 0."""
    p = place.row.p
    noise = randomness.gumbel(place.position, len(p))
    perturbed = np.full(len(p), -np.inf)
    perturbed[p > 0] = np.log(p[p > 0]) + noise[p > 0]
    return _match(place, int(np.argmax(perturbed)))


def _match(place: DecisionPlace, own: int) -> Ruling:
    """Accept the first drafted token that equals the target's own token."""
    tried: list[Examined] = []
    for offer in place.offers:
        q = NAN if offer.q is None else float(offer.q[offer.token])
        accepted = offer.token == own
        tried.append(Examined(offer.node, float(place.row.p[offer.token]), q, NAN, accepted))
        if accepted:
            return Ruling(own, Role.ACCEPTED, NAN, tuple(tried))
    return Ruling(own, _last_role(place), NAN, tuple(tried))


def _last_role(place: DecisionPlace) -> Role:
    if place.offers:
        return Role.RECOVERED
    return Role.PLAIN if place.empty else Role.BONUS


RULES: Final[Mapping[Protocol, Rule]] = {
    Protocol.CHAIN: chain,
    Protocol.TREE: tree,
    Protocol.GREEDY: greedy,
    Protocol.GUMBEL: gumbel,
}
"""Rules that decide place by place; the block rule decides on the whole draft (`audit.checks.replay.full`)."""
