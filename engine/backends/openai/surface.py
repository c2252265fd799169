"""The surface of one answer: which fields the server filled, and where they contradict each other.

A field counts as filled if it holds a value for every generated token, or for the answer as a whole. Counts of drafts
are no part of it: a plain answer has none.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from engine.backends.openai.response import Completion
from engine.core.structured import ConstraintSpec
from engine.core.types import SamplingParams
from engine.record.facts import CONSTRAINT

KEY: Final = "surface"
"""Of a record's facts."""
CONTENT: Final = ("content", "reasoning", "refusal", "tool_calls")
WHOLE_LISTS: Final = "whole lists"
"""Every list of likely tokens has the requested length."""
BY_CHANCE: Final = (*CONTENT, WHOLE_LISTS)
"""Fields that an answer has or lacks by what it says: in a list with one entry per text, tokens of one text are one."""
MOST_FLAWS: Final = 20
INSTEAD: Final = {"refusal": "a refusal", "tool_calls": "a tool call"}
"""Parts of an answer that may come instead of its content, and their names."""


def surface_facts(
    answer: Completion, parts: Completion | None, sampling: SamplingParams, rivals: int
) -> dict[str, Any]:
    """The surface of an answer, and of its streamed form `parts`, as facts.

    `rivals` is the requested length of the lists of likely tokens.
    """
    flaws = [{"place": place, "text": piece.flaw} for place, piece in enumerate(answer.pieces or ()) if piece.flaw]
    facts: dict[str, Any] = {"fields": fields_of(answer, rivals)}
    if flaws:
        facts["flaws"] = flaws[:MOST_FLAWS]
    if sampling.greedy and sampling.plain_scores and answer.pieces:
        behind = [piece.behind for piece in answer.pieces if not math.isnan(piece.behind)]
        facts |= {"behind": max(behind), "behind_at": behind.index(max(behind))} if behind else {}
    if parts is not None:
        lost = set(facts["fields"]) - set(fields_of(parts, rivals)) - set(BY_CHANCE)
        facts["streamed_lacks"] = sorted(lost)
    return {KEY: facts}


def fields_of(answer: Completion, rivals: int) -> list[str]:
    """The fields that an answer fills; `rivals` is the requested length of the lists of likely tokens."""
    pieces = answer.pieces or ()
    # an answer without any token has no list to fill
    scored = answer.pieces is not None or not answer.text
    filled: Mapping[str, bool] = {
        **{name: bool(getattr(answer, name)) for name in CONTENT},
        "stop_reason": answer.known_stop,
        "token_ids": answer.token_ids is not None,
        "prompt_token_ids": answer.prompt_ids is not None,
        "logprobs": scored and not any(math.isnan(piece.logprob) for piece in pieces),
        "top_logprobs": scored and all(piece.rivals >= (min(rivals, 1) if piece.keyed else rivals) for piece in pieces),
        WHOLE_LISTS: scored and all(piece.rivals >= rivals for piece in pieces),
        "ids in logprobs": scored and all(piece.id is not None for piece in pieces),
        "bytes in logprobs": scored and all(piece.raw is not None for piece in pieces),
        **{f"usage.{key[:100]}": True for key, value in answer.usage.items() if isinstance(value, int)},
    }
    return [name for name, present in filled.items() if present]


def judged_facts(spec: ConstraintSpec | None, answer: Completion) -> dict[str, Any]:
    """Scope of the grammar in an answer with several parts: its content, or the part instead of it."""
    if spec is None or answer.text == answer.content:
        return {}
    instead = next((name for part, name in INSTEAD.items() if getattr(answer, part)), None)
    if instead is None or answer.content:
        return {CONSTRAINT: {"content": answer.content}}
    return {CONSTRAINT: {"instead": instead}}
