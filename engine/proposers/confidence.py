"""Stopping a draft where the draft model is unsure: a rule that looks at the prefix only.

Before a token is drawn, the largest entry of the q that it would be drawn from is compared with a threshold; below it,
the draft ends without a draw.

Why this is lossless. Let h be a prefix, drafted tokens included. q(.|h) is a function of h, so the decision s(h) to
stop is one too. Where s(h) holds, the next token after h is emitted from p(.|h), as the bonus token of the shorter
draft. Where it does not, x ~ q(.|h) is verified: kept with probability min(1, p(x)/q(x)), else replaced by a draw from
norm(max(p - q, 0)), which again emits p(.|h). Either way the token after h follows p(.|h); by induction over h so does
the whole output. The same holds for every rule that is lossless position by position, and for block verification: a
prefix of i tokens survives with probability P_i whether the draft ends there or not.

Why the rule must not read the token's own probability. Let a drawn x be dropped if it is in D, the tokens with q(x) <
c, and let K be the others. A drop sends the step to p, so with r = norm(max(p - q, 0)) the emitted law is

    min(p, q)(y) [y in K] + r(y) sum_{x in K} max(q - p, 0)(x) + p(y) q(D).

Without drops it is min(p, q)(y) + r(y) sum_x max(q - p, 0)(x) = p(y); the difference

    p(y) q(D) - min(p, q)(y) [y in D] - r(y) sum_{x in D} max(q - p, 0)(x)

is zero only by accident: a token of D is replaced by p as a whole, not by what p and the rule have left for it. The
same holds for any value computed from the token, such as the confidence at the position after it. (A rule may end a
draft *after* a token, because the token then stays.)

Source: the stopping thresholds of Zhang et al. (Draft & Verify, 2309.08168) and of the assistant models of
transformers, put before the draw.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.core.options import ScalarOption
from engine.sampling.draw import DraftContext
from engine.sampling.transforms import softmax

STOP_BELOW: Final = ScalarOption(0.0, 0.0, 1.0)
"""The option `stop_below`; 0 never stops."""


EndRule = Callable[[float, NDArray[np.floating[Any]], DraftContext], bool]
"""The arguments of `unsure` -> whether a draft ends."""


def unsure(stop_below: float, logits: NDArray[np.floating[Any]], context: DraftContext) -> bool:
    """Whether a draft ends before the token at position `len(context.history)`, whose row is `logits` [V].

    `stop_below` is the threshold on the largest q; 0 never stops.
    """
    return stop_below > 0 and largest_q(logits, context) < stop_below


def largest_q(logits: NDArray[np.floating[Any]], context: DraftContext) -> float:
    """The largest q; at temperature 0, where q is one-hot, that of the scores at temperature 1."""
    row = context.row(logits)
    return float((softmax(row.scores) if context.params.greedy else row.p).max())
