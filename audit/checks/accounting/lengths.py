"""The number of drafted tokens per step against the arm's declaration.

No step drafts more than gamma. Where the proposer declares steady drafts
(`engine.core.steady.SteadyDrafts`), every step drafts as many tokens as gamma, the
proposer's limit and the end of the request allow: the last token of a request is
never drafted, because a step emits one more token than it accepts. The rule does
not apply to arms without the declaration, beyond the draft's context length, and
after a prefix of one token, where some proposers have no hidden state yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.evidence.structure import Violation
from engine.core.steady import SteadyDrafts
from engine.record.effective import Effective
from engine.record.trace import Trace

SHORTEST = 2
"""Shortest prefix, in tokens, at which the declaration of steady drafts holds."""


@dataclass(frozen=True, slots=True)
class DeclaredLengths:
    """Lengths that an arm declares; None if it does not."""

    gamma: int | None
    steady: SteadyDrafts | None


def declared(effective: Effective) -> DeclaredLengths:
    """Read the declared lengths from the effective configuration."""
    return DeclaredLengths(effective.gamma, effective.steady_drafts)


def length_faults(trace: Trace, lengths: DeclaredLengths) -> Iterator[Violation]:
    """Steps that drafted more or fewer tokens than the arm declares."""
    gamma = lengths.gamma
    if gamma is None:
        return
    for step in np.flatnonzero(trace.n_drafted > gamma):
        yield Violation(int(step), f"{int(trace.n_drafted[step])} tokens were drafted, gamma is {gamma}")
    if lengths.steady is None:
        return
    due = _due(trace, gamma, lengths.steady)
    for step in np.flatnonzero(trace.n_drafted < due):
        yield Violation(
            int(step),
            f"{int(trace.n_drafted[step])} tokens were drafted where {int(due[step])} were due, gamma is {gamma}",
        )


def _due(trace: Trace, gamma: int, steady: SteadyDrafts) -> NDArray[np.int64]:
    """[S] number of tokens that each step must draft; 0 without a declaration."""
    prefix = trace.position.astype(np.int64)
    left = len(trace.header.prompt) + trace.header.sampling.max_new_tokens - prefix - 1
    most = gamma if steady.most is None else min(gamma, steady.most)
    due = np.clip(left, 0, most)
    return np.where((prefix >= SHORTEST) & (prefix + due <= steady.context), due, 0)
