"""Half of the tokens asked for are drafted: gamma is read in one place and not in the other."""

from __future__ import annotations

from dataclasses import replace

from engine.faults.broken_proposer import proposer_fault
from engine.faults.chain_walk import Origin
from engine.faults.interface import Suits
from engine.proposers.interface import Context


def _half(context: Context) -> Context:
    return replace(context, budget=(context.budget + 1) // 2)


FAULT = proposer_fault(
    "gamma_not_respected",
    Origin(
        "none known: options that do not reach the drafter; drafts above gamma are refused by the loop",
        "engine evidence",
        "cost",
    ),
    ask=_half,
    suits=Suits(temperature="both"),
)
