"""How a draft token is drawn from draft logits, by the rule that the verifier asks for.

q is the distribution that the token was drawn from, never another one.
Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.rng import Purpose, Randomness
from engine.sampling import gumbel_argmax, inverse_cdf, transform
from engine.types import DraftRule, Floats, QKind, SamplingParams


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a draw may look at: the prefix and the request, never the target's row."""

    history: Sequence[int]
    """Prompt, committed tokens and tokens drafted so far."""
    n_prompt: int
    params: SamplingParams
    eos_ids: tuple[int, ...]
    randomness: Randomness


@dataclass(frozen=True, slots=True)
class Draw:
    """A drafted token and the q [V] it was drawn from (None if it is deterministic)."""

    token: int
    kind: QKind
    q: Floats | None
    uniform: float


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
    row = transform(logits, context.history, context.n_prompt, context.params, context.eos_ids)
    position = len(context.history)
    if greedy:
        return Draw(int(np.argmax(row.scores)), QKind.ONE_HOT, None, float("nan"))
    if rule is DraftRule.COUPLED:
        token = gumbel_argmax(row.p, context.randomness.gumbel(position, len(row.p)))
        return Draw(token, QKind.FULL, row.p, float("nan"))
    u = context.randomness.uniform(position, Purpose.DRAFT)
    return Draw(inverse_cdf(row.p, u), QKind.FULL, row.p, u)
