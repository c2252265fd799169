"""The minimum length is counted in steps, so that end tokens stay forbidden for too long.

A step of several tokens counts as one. Responses come out longer than they
should, the more so the better the drafts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.core.types import SamplingParams
from engine.decode.seams import EngineParts
from engine.faults.interface import Fault, Scenario, Suits
from engine.faults.retelling import Retell, Steps, Told, retold_by_step


def _counted_as(told: Told, counted: int) -> Told:
    """The rule compares with tokens: what is not yet counted is added to what is asked for."""
    asked, generated = told.params.min_tokens, len(told.committed) + len(told.path) - told.n_prompt
    return replace(told, params=replace(told.params, min_tokens=asked + generated - counted)) if asked else told


def _apply(parts: EngineParts) -> EngineParts:
    steps = Steps()

    def of_step(history: Sequence[int], n_prompt: int) -> Retell:
        counted = len(steps.ends(history, n_prompt))
        return lambda told: _counted_as(told, counted)

    return retold_by_step(parts, of_step)


FAULT = Fault(
    name="min_tokens_in_steps",
    breaks="law",
    upstream="sgl-project/sglang#33643",
    seen_from="text",
    parts=("rows",),
    apply=_apply,
    suits=Suits(temperature="both", needs=("masks", "end tokens")),
    scenario=Scenario(sampling=SamplingParams(temperature=1.0, min_tokens=8, stop_token_ids=(2, 9, 17, 28))),
)
