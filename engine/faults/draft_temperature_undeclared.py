"""The draft is drawn at 0.7 of the request's temperature, and q is told at the request's."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from engine.faults.broken_draw import Seen, draw_fault
from engine.faults.chain_walk import Origin

SHARE: Final = 0.7


def _colder(seen: Seen) -> Seen:
    return replace(seen, logits=seen.logits / SHARE)


FAULT = draw_fault(
    "draft_temperature_undeclared",
    Origin("none known: z-lab/dflash#74 drafts at a temperature of its own, under a rule that does not ask for q"),
    token_of=_colder,
)
