"""How many tokens a step drafts, against what the arm says of itself.

No step drafts more than gamma. Where the proposer declares steady drafts
(`engine.core.types.SteadyDrafts`), none drafts fewer than gamma, the proposer's own
most and the request's end allow: the last token of a request is never drafted,
because a step emits one more than it accepts. Nothing is said where the arm does
not declare it, beyond the context of what drafts, and of prefixes of one token,
after which some have no hidden state to draft from. Knows nothing about why a
draft is short.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.evidence.structure import Fault
from engine.core.types import SteadyDrafts
from engine.record.effective import Effective
from engine.record.trace import Trace

SHORTEST = 2
"""Tokens of a prefix from which on steady drafts are steady."""


@dataclass(frozen=True, slots=True)
class DeclaredLengths:
    """What an arm declares: None where it does not say."""

    gamma: int | None
    steady: SteadyDrafts | None


def declared(effective: Effective) -> DeclaredLengths:
    """What the effective configuration says about lengths."""
    return DeclaredLengths(effective.gamma, effective.steady_drafts)


def length_faults(trace: Trace, lengths: DeclaredLengths) -> Iterator[Fault]:
    """Steps that drafted more or fewer tokens than the arm declares."""
    gamma = lengths.gamma
    if gamma is None:
        return
    for step in np.flatnonzero(trace.n_drafted > gamma):
        yield Fault(int(step), f"{int(trace.n_drafted[step])} tokens were drafted, gamma is {gamma}")
    if lengths.steady is None:
        return
    due = _due(trace, gamma, lengths.steady)
    for step in np.flatnonzero(trace.n_drafted < due):
        yield Fault(
            int(step),
            f"{int(trace.n_drafted[step])} tokens were drafted where {int(due[step])} were due, gamma is {gamma}",
        )


def _due(trace: Trace, gamma: int, steady: SteadyDrafts) -> NDArray[np.int64]:
    """[S] the tokens that each step has to draft; 0 where nothing is declared."""
    prefix = trace.position.astype(np.int64)
    left = len(trace.header.prompt) + trace.header.sampling.max_new_tokens - prefix - 1
    most = gamma if steady.most is None else min(gamma, steady.most)
    due = np.clip(left, 0, most)
    return np.where((prefix >= SHORTEST) & (prefix + due <= steady.context), due, 0)
