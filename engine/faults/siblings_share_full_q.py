"""Siblings are drawn without replacement and verified by the whole q, as if they had been drawn with it."""

from __future__ import annotations

from dataclasses import replace

from engine.core.types import DraftRule, Protocol
from engine.decode.seams import EngineParts
from engine.faults.broken_draw import Row
from engine.faults.interface import Fault, Scenario, Suits
from engine.sampling.draw import DraftContext, Draw, SiblingSpec

BUSHY = Scenario(Protocol.TREE, "sequoia", 12, options={"rates": "0.5,0.3,0.15", "depth": 3})


def _apply(parts: EngineParts) -> EngineParts:
    def draw_siblings(rule: DraftRule, siblings: SiblingSpec, logits: Row, context: DraftContext) -> list[Draw]:
        draws = parts.draw_siblings(rule, siblings, logits, context)
        return [replace(each, q=draws[0].q) for each in draws]

    return replace(parts, draw_siblings=draw_siblings)


FAULT = Fault(
    name="siblings_share_full_q",
    breaks="law",
    upstream="none known: the slip that drawing without replacement invites",
    seen_from="text",
    parts=("draw_siblings",),
    apply=_apply,
    suits=Suits((Protocol.TREE,), "tree"),
    scenario=BUSHY,
)
