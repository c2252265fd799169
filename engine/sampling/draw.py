"""Draws of draft tokens from draft logits, by the rule that the verifier requires.

q is always the distribution that the token was drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.types import DraftRule, Floats, Mask, QKind, SamplingParams
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import MaskOf, TransformedRow, gumbel_argmax, inverse_cdf, transform


@dataclass(frozen=True, slots=True)
class DraftContext:
    """The inputs of a draw: the prefix and the request, never the target's row."""

    history: Sequence[int]
    """Prompt, committed tokens and tokens drafted so far."""
    n_prompt: int
    params: SamplingParams
    eos_ids: tuple[int, ...]
    randomness: Randomness
    masks: MaskOf | None = None
    """The request's grammar; None without one."""

    @property
    def allowed(self) -> Mask | None:
        """The grammar's mask after the history."""
        return None if self.masks is None else self.masks(self.history[self.n_prompt :])

    def row(self, logits: NDArray[np.floating[Any]]) -> TransformedRow:
        """Q of the next token, from its row of draft logits [V]."""
        return transform(logits, self.history, self.n_prompt, self.params, self.eos_ids, self.allowed)


@dataclass(frozen=True, slots=True)
class Draw:
    """A drafted token and the q [V] it was drawn from (None if it is deterministic)."""

    token: int
    kind: QKind
    q: Floats | None
    uniform: float


class Siblings(StrEnum):
    """The draw rule for the children of one node."""

    WITH_REPLACEMENT = "with_replacement"
    """Independently, each from q (SpecInfer 2305.09781)."""
    WITHOUT_REPLACEMENT = "without_replacement"
    """Each from q without the earlier ones, renormalised (Sequoia 2402.12374)."""
    TOP = "top"
    """The most likely tokens, in this order: a function of the prefix (EAGLE-2 2406.16858)."""


DrawRule = Callable[[DraftRule, NDArray[np.floating[Any]], DraftContext], Draw]


def draw(rule: DraftRule, logits: NDArray[np.floating[Any]], context: DraftContext) -> Draw:
    """Draw the token at position `len(context.history)` from one row of draft logits.

    At temperature 0 every rule is the argmax.
    """
    greedy = rule is DraftRule.GREEDY or context.params.greedy
    if greedy and context.params.plain_scores:
        token = int(logits.argmax())
        if np.isfinite(logits[token]):
            return Draw(token, QKind.ONE_HOT, None, float("nan"))
    row = context.row(logits)
    position = len(context.history)
    if greedy:
        return Draw(int(np.argmax(row.scores)), QKind.ONE_HOT, None, float("nan"))
    if rule is DraftRule.COUPLED:
        token = gumbel_argmax(row.p, context.randomness.gumbel(position, len(row.p)))
        return Draw(token, QKind.FULL, row.p, float("nan"))
    u = context.randomness.uniform(position, Purpose.DRAFT)
    return Draw(inverse_cdf(row.p, u), QKind.FULL, row.p, u)


@dataclass(frozen=True, slots=True)
class SiblingSpec:
    """The number of children to draw, their draw rule, and the order of the first among the nodes of its depth."""

    count: int
    how: Siblings
    first: int = 0


SiblingRule = Callable[[DraftRule, SiblingSpec, NDArray[np.floating[Any]], DraftContext], list[Draw]]


def draw_siblings(
    rule: DraftRule,
    siblings: SiblingSpec,
    logits: NDArray[np.floating[Any]],
    context: DraftContext,
    recorded: Sequence[int] = (),
) -> list[Draw]:
    """Draw the children of a node from one row of draft logits: the requested number, or fewer if q has fewer tokens.

    Each draw carries the q that it was drawn from, given the earlier ones, which makes the tree rule lossless. A
    coupled draw takes the largest remaining entry of log q plus the target's noise. At temperature 0 and under the
    greedy rule the children are the most likely tokens. Each child is drawn as if the earlier ones had come out as
    `recorded`, which may be fewer.
    """
    row = context.row(logits)
    if rule is DraftRule.GREEDY or context.params.greedy or siblings.how is Siblings.TOP:
        return _most_likely(row.scores, siblings.count, recorded)
    position, q = len(context.history), row.p
    draws: list[Draw] = []
    for place, order in enumerate(range(siblings.first, siblings.first + siblings.count)):
        drawn = _one_of(rule, q, position, order, context.randomness)
        draws.append(drawn)
        if siblings.how is Siblings.WITHOUT_REPLACEMENT or rule is DraftRule.COUPLED:
            left = q.copy()
            left[recorded[place] if place < len(recorded) else drawn.token] = 0.0
            mass = float(left.sum())
            if mass == 0:
                break
            q = left / mass
    return draws


def _one_of(rule: DraftRule, q: Floats, position: int, order: int, randomness: Randomness) -> Draw:
    if rule is DraftRule.COUPLED:
        return Draw(gumbel_argmax(q, randomness.gumbel(position, len(q))), QKind.FULL, q, float("nan"))
    u = randomness.uniform(position, Purpose.DRAFT, order)
    return Draw(inverse_cdf(q, u), QKind.FULL, q, u)


def _most_likely(scores: Floats, count: int, recorded: Sequence[int]) -> list[Draw]:
    """The largest finite scores, lowest ids first among equals; each beside the `recorded` ones before it."""
    ranked = [int(token) for token in np.argsort(-scores, kind="stable")[: count + len(recorded)]]
    drawn: list[int] = []
    before: list[int] = []
    while len(drawn) < count and (left := [token for token in ranked if token not in before]):
        before.append(recorded[len(drawn)] if len(drawn) < len(recorded) else left[0])
        drawn.append(left[0])
    return [Draw(token, QKind.ONE_HOT, None, float("nan")) for token in drawn if np.isfinite(scores[token])]
