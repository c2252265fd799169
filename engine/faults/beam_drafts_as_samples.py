"""The most likely children are drafted, as a beam search finds them, and reported as draws from q."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.core.types import DraftRule, Protocol
from engine.decode.seams import EngineParts
from engine.faults.broken_draw import Row
from engine.faults.interface import Fault, Suits
from engine.faults.siblings_share_full_q import BUSHY
from engine.sampling.draw import DraftContext, Draw, SiblingSpec


def _apply(parts: EngineParts) -> EngineParts:
    def draw_siblings(rule: DraftRule, siblings: SiblingSpec, logits: Row, context: DraftContext) -> list[Draw]:
        draws = parts.draw_siblings(rule, siblings, logits, context)
        if not draws or draws[0].q is None:
            return draws
        beam = np.argsort(-draws[0].q, kind="stable")
        return [replace(each, token=int(token)) for each, token in zip(draws, beam, strict=False)]

    return replace(parts, draw_siblings=draw_siblings)


FAULT = Fault(
    name="beam_drafts_as_samples",
    breaks="law",
    upstream="apple/ml-recurrent-drafter#6",
    seen_from="text",
    parts=("draw_siblings",),
    apply=_apply,
    suits=Suits((Protocol.TREE,), "tree"),
    scenario=BUSHY,
)
