"""Shared by draft models with their own cache: reading a prompt, and staying within the cache."""

from __future__ import annotations

from dataclasses import replace

from engine.models.interface import SlotCache, TargetModel, WantedOutputs, chain_placement
from engine.proposers.interface import Context


def read_prompt(model: TargetModel, cache: SlotCache, context: Context) -> int:
    """Read the prompt but its last token, which drafting feeds; how many tokens were read, 0 if they do not fit."""
    prompt = list(context.history[:-1])
    if not prompt or len(prompt) >= cache.capacity:
        return 0
    placement = chain_placement([prompt], [0], cache.trash, first_row=context.row)
    model.forward(cache, placement, WantedOutputs(logits=False))
    return len(prompt)


def within(cache: SlotCache, context: Context) -> Context:
    """The context with a budget that the cache has columns for."""
    return limited(context, cache.capacity - len(context.history))


def limited(context: Context, room: int) -> Context:
    """The context with a budget of at most `room` tokens; none where that is negative."""
    return replace(context, budget=max(0, min(context.budget, room)))
