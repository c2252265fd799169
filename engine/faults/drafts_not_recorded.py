"""A step that keeps none of its draft is recorded as one without a draft.

Steps are left out of every acceptance figure exactly when they would lower it.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import Proposal, Request, Role, StepOutcome, StepRecord
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Suits


def _forget(_request: Request, record: StepRecord) -> StepRecord:
    if record.verdict.n_accepted or not len(record.proposal.tree):
        return record
    emitted = tuple(replace(each, role=Role.PLAIN) for each in record.verdict.emitted)
    return replace(record, proposal=Proposal(), verdict=StepOutcome(emitted))


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, record=_forget)


FAULT = Fault(
    name="drafts_not_recorded",
    breaks="acceptance",
    upstream="none known: a count of drafts that stands where one was kept",
    seen_from="engine evidence",
    parts=("record",),
    apply=_apply,
    suits=Suits(shape="chain", temperature="both"),
)
