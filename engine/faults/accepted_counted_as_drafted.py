"""Only drafts that were kept are counted as drafted: the acceptance rate is 1.

Refused tokens vanish from the record, and with them the numbers that refused
them.
"""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import Request, Role, StepOutcome, StepRecord
from engine.decode.seams import EngineParts
from engine.faults.broken_proposer import shortened
from engine.faults.interface import Fault, Suits


def _kept_only(_request: Request, record: StepRecord) -> StepRecord:
    kept = tuple(each for each in record.verdict.examined if each.accepted)
    last = Role.BONUS if kept else Role.PLAIN
    emitted = tuple(
        replace(each, role=last) if each.role is Role.RECOVERED else each for each in record.verdict.emitted
    )
    return replace(record, proposal=shortened(record.proposal, len(kept)), verdict=StepOutcome(emitted, kept))


def _apply(parts: EngineParts) -> EngineParts:
    return replace(parts, record=_kept_only)


FAULT = Fault(
    name="accepted_counted_as_drafted",
    breaks="acceptance",
    upstream="ggml-org/llama.cpp#25682",
    seen_from="engine evidence",
    parts=("record",),
    apply=_apply,
    suits=Suits(shape="chain", temperature="both"),
)
