"""A step's drafts are verified with the q rows of the step before.

Rows that are kept for the next step and read one step late. Every test of a
draft is right for the recorded q, because that is the q that was used; the
drafted tokens were not drawn from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.core.types import Floats, Proposal
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault
from engine.faults.wrapping import ChangeProposals, with_proposals
from engine.proposers.interface import Context


def _late() -> ChangeProposals:
    kept: dict[str, Floats] = {}

    def change(contexts: Sequence[Context], proposals: Sequence[Proposal]) -> Sequence[Proposal]:
        changed = []
        for context, proposal in zip(contexts, proposals, strict=True):
            late = kept.get(context.request.id)
            usable = late is not None and proposal.q is not None and len(late) >= len(proposal.q)
            changed.append(replace(proposal, q=late[: len(proposal.tree)]) if usable and late is not None else proposal)
            if proposal.q is not None:
                kept[context.request.id] = proposal.q
        return changed

    return change


def _apply(parts: EngineParts) -> EngineParts:
    return with_proposals(parts, _late)


FAULT = Fault(
    name="stale_q",
    breaks="law",
    upstream="none known: engines that hand q from one step to the next can hand it one step late",
    seen_from="text",
    parts=("proposer",),
    apply=_apply,
)
