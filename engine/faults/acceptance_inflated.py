"""The token that ends a step is counted as an accepted draft.

One too many in every step: an acceptance rate that is never 0 and can exceed 1.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import Request, Role, StepRecord
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Suits


def _count_last(_request: Request, record: StepRecord) -> StepRecord:
    emitted = tuple(
        each if each.role is Role.PLAIN else replace(each, role=Role.ACCEPTED) for each in record.verdict.emitted
    )
    return replace(record, verdict=replace(record.verdict, emitted=emitted))


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, record=_count_last)


FAULT = Fault(
    name="acceptance_inflated",
    breaks="acceptance",
    upstream="sgl-project/sglang#23530, #11572",
    seen_from="engine evidence",
    parts=("record",),
    apply=_apply,
    suits=Suits(temperature="both"),
)
