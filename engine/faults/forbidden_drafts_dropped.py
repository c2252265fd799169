"""Drafted tokens that a mask forbids are dropped before they are verified, and leave no trace.

What a grammar does to a draft that does not know it. The token was drawn, so
its place must be decided by the residual; decided as if nothing had been drafted,
the allowed tokens come out by the wrong law. The record cannot show it: the
proposal that it holds is not the one that was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.types import DraftRule, Proposal, SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.broken_proposer import shortened
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.wrapping import with_proposals
from engine.proposers.interface import Context
from engine.sampling.draw import DraftContext, Draw


def _drop_all(contexts: Sequence[Context], proposals: Sequence[Proposal]) -> Sequence[Proposal]:
    return [_drop(context, proposal) for context, proposal in zip(contexts, proposals, strict=True)]


def _drop(context: Context, proposal: Proposal) -> Proposal:
    forbidden = {word[0] for word in context.request.sampling.bad_words if len(word) == 1}
    tokens = proposal.tree.tokens
    count = next((i for i, token in enumerate(tokens) if token in forbidden), len(tokens))
    return shortened(proposal, count)


def _apply(parts: EngineParts) -> EngineParts:
    def draw(rule: DraftRule, logits: NDArray[np.floating[Any]], context: DraftContext) -> Draw:
        return parts.draw(rule, logits, replace(context, params=replace(context.params, bad_words=())))

    return with_proposals(replace(parts, draw=draw), lambda: _drop_all)


FAULT = Fault(
    name="forbidden_drafts_dropped",
    breaks="law",
    upstream="none known: engines drop what a grammar forbids before verification, nobody has reported the bias",
    seen_from="text",
    parts=("draw", "proposer"),
    apply=_apply,
    suits=Suits(shape="chain", needs=("masks",)),
    scenario=Scenario(sampling=SamplingParams(temperature=1.0, bad_words=((1,), (8,), (14,), (19,), (22,), (27,)))),
)
