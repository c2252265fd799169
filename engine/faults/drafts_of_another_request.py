"""Requests in a batch are given each other's drafts, q and all.

The law holds, as for any draft. Tokens that continue another text are seldom
kept, and the number behind each of them is another request's.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.types import Proposal
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Suits
from engine.faults.wrapping import with_proposals
from engine.proposers.interface import Context


def _rotate(contexts: Sequence[Context], proposals: Sequence[Proposal]) -> Sequence[Proposal]:
    given = [proposals[-1], *proposals[:-1]] if proposals else []
    # a longer draft than the request has room for would be refused
    return [
        other if len(other.tree) == len(own.tree) <= context.budget else own
        for context, own, other in zip(contexts, proposals, given, strict=True)
    ]


def _apply(parts: EngineParts) -> EngineParts:
    return with_proposals(parts, lambda: _rotate)


FAULT = Fault(
    name="drafts_of_another_request",
    breaks="acceptance",
    upstream="none known: the draft's half of rows that are permuted in a batch",
    seen_from="engine evidence",
    parts=("proposer",),
    apply=_apply,
    suits=Suits(shape="chain", temperature="both", needs=("several requests",)),
)
