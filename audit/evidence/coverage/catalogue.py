"""The catalogue of situations that speculative engines get wrong.

Each entry recognises its situation from a request's record alone. A recogniser
returns a mask over the emitted tokens with one mark per occurrence, or None
where the record lacks the facts. Only those of the group BATCH receive `RequestView.batch`.

To add a situation, add one function, one entry here and one section in docs/situations.

Situations of what reads the text: tool calls that the engine found, and tokens on which a filter decided.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from audit.evidence.coverage import context, drafting, ends
from audit.evidence.coverage.groups import Group
from audit.evidence.coverage.view import Mask, RequestView
from audit.evidence.streams import stream_of
from audit.evidence.tool_calls import spans_of, unread_reason
from engine.core.types import FinishReason

Recogniser = Callable[[RequestView], Mask | None]


@dataclass(frozen=True, slots=True)
class Situation:
    """One situation. `remedy` says what brings it about, after the words "to reach it,"; none of them changes what is
    deployed.
    """

    name: str
    group: Group
    recognise: Recogniser
    remedy: str = "add prompts or samples, or raise max_new_tokens: directed requests then have room"


def tool_call(view: RequestView) -> Mask | None:
    """Tokens of tool calls in steps with a draft; None if the request offers tools and nothing reads its calls."""
    if unread_reason(view.request) is not None:
        return None
    inside = view.nothing()
    for span in spans_of(view.request):
        inside[span.start : span.stop] = True
    return np.asarray(inside & (view.drafted[view.step] > 0))


def filtered(view: RequestView) -> Mask | None:
    """Tokens with which a filter decided to redact, stop or refuse; None if no stream is recorded."""
    stream = stream_of(view.trace.header)
    if stream is None:
        return None
    mask = view.nothing()
    for decision in stream.decisions:
        if 0 <= decision.token < len(mask):
            mask[decision.token] = True
    return mask


def tool_call_at_step_end(view: RequestView) -> Mask | None:
    """Last tokens of tool calls that are the last of a step with a draft; None as for `tool_call`."""
    if unread_reason(view.request) is not None:
        return None
    ends = view.nothing()
    ends[[span.stop - 1 for span in spans_of(view.request)]] = True
    return np.asarray(ends & view.at_last(view.drafted > 0))


def filter_at_length(view: RequestView) -> Mask | None:
    """Requests that end at their length limit while a filter holds text back; None if no stream is recorded."""
    stream = stream_of(view.trace.header)
    if stream is None:
        return None
    mask = view.nothing()
    mask[-1:] = view.request.finish_reason is FinishReason.LENGTH and stream.held > 0
    return mask


def _entries() -> tuple[Situation, ...]:
    d, e, a, b = Group.DRAFTING, Group.ENDS, Group.PARAMETERS, Group.BATCH
    p, t, c, v = Group.PROMPTS, Group.TREES, Group.CONTEXTS, Group.EVENTS
    calls = "add prompts with tools that the model calls"
    return (
        Situation("nothing_drafted", d, drafting.nothing_drafted),
        Situation("rejected_first", d, drafting.rejected_first),
        Situation("rejected_middle", d, drafting.rejected_middle),
        Situation("rejected_last", d, drafting.rejected_last),
        Situation("kept_whole", d, drafting.kept_whole),
        Situation("after_nothing_drafted", d, drafting.after_nothing_drafted),
        Situation("after_rejection", d, drafting.after_rejection),
        Situation("after_kept_whole", d, drafting.after_kept_whole),
        Situation("recovered_token", d, drafting.recovered_token),
        Situation("bonus_token", d, drafting.bonus_token),
        Situation("plain_token", d, drafting.plain_token),
        Situation("small_residual", d, drafting.small_residual),
        Situation("outside_truncation", d, drafting.outside_truncation),
        Situation("end_in_draft", e, ends.end_in_draft),
        Situation("end_at_last_draft", e, ends.end_at_last_draft),
        Situation("end_at_bonus", e, ends.end_at_bonus),
        Situation("stop_string_in_draft", e, ends.stop_string_in_draft),
        Situation("stop_string_across_steps", e, ends.stop_string_across_steps),
        Situation("length_in_draft", e, ends.length_in_draft),
        Situation("min_tokens_in_draft", e, ends.min_tokens_in_draft, "add prompts whose answers pass min_tokens"),
        Situation("penalty_in_draft", a, ends.penalty_in_draft),
        Situation("ban_in_draft", a, ends.ban_in_draft),
        Situation("row_reused", b, context.row_reused),
        Situation("rows_finish_together", b, context.rows_finish_together),
        Situation("neighbour_joins", b, context.neighbour_joins),
        Situation("cancelled_neighbour", b, context.cancelled_neighbour, "set cancel_beside"),
        Situation("mixed_parameters", b, context.mixed_parameters, "set mixed: true, and batch_size 2 or more"),
        Situation("mixed_lengths", b, context.mixed_lengths),
        Situation("mixed_drafts", b, context.mixed_drafts),
        Situation("first_token", p, context.first_token),
        Situation("long_prompt", p, context.long_prompt),
        Situation("shared_prefix", p, context.shared_prefix),
        Situation("later_turn", p, context.later_turn, "give prompts turns"),
        Situation("block_border", p, context.block_border),
        Situation("preempted", p, context.preempted, "give the engine less memory than its requests need together"),
        Situation("tree_branch", t, drafting.tree_branch),
        Situation("tree_deep", t, drafting.tree_deep),
        Situation("context_short", c, context.context_short, "add short prompts"),
        Situation("context_medium", c, context.context_medium),
        Situation("context_long", c, context.context_long),
        Situation("likely_token", c, context.likely_token),
        Situation("unlikely_token", c, context.unlikely_token),
        Situation("near_tie", c, context.near_tie),
        Situation("grammar", v, ends.grammar, "set structured, or give prompts a grammar"),
        Situation("tool_call", v, tool_call, calls),
        Situation("tool_call_at_step_end", v, tool_call_at_step_end, calls),
        Situation("filter", v, filtered, "add filters, with rules that the answers meet"),
        Situation("filter_at_length", v, filter_at_length, "lower max_new_tokens, so that it ends filtered answers"),
    )


CATALOGUE: Final[Mapping[str, Situation]] = MappingProxyType({mapping.name: mapping for mapping in _entries()})
"""Situations by name, in the order in which they are reported."""
