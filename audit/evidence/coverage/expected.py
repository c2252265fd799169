"""The situations that an arm's own settings ask for, of which a run must show some before it may pass.

`often` lists those that every run of these settings meets again and again; their floor is a suite's `least`. `once`
lists those that a run of moderate size meets: their floor is one occurrence. Prompts, ends and small residuals are
among them, although settings alone do not promise them: a suite that cannot meet one waives it by name.
"""

from collections.abc import Iterator
from typing import Final

from audit.evidence.coverage.drafting import drafts_deep
from audit.evidence.records import ArmRecord
from audit.evidence.streams import declared_filters
from audit.evidence.tool_calls import asks_for_calls
from engine.core.types import FinishReason, Protocol, SamplingParams
from engine.record.effective import CANCELLED
from engine.record.trace import TraceHeader
from engine.stream.interface import Side

CORE: Final = ("recovered_token", "bonus_token", "after_rejection", "after_kept_whole")
"""Every arm that speculates rejects drafts, keeps some whole, and goes on after both."""
ANYWHERE: Final = (
    *("rejected_first", "kept_whole", "nothing_drafted", "length_in_draft"),
    *("long_prompt", "shared_prefix", "context_medium", "near_tie"),
)
"""Every arm that speculates should meet each of these once."""
ENDS: Final = ("end_in_draft", "end_at_last_draft", "end_at_bonus")
"""With end tokens."""
TOGETHER: Final = ("neighbour_joins", "rows_finish_together")
"""With several rows."""
ONCE: Final = frozenset(
    (
        *(*ANYWHERE, *ENDS, *TOGETHER),
        *("rejected_middle", "rejected_last", "after_nothing_drafted", "small_residual", "outside_truncation"),
        *("mixed_drafts", "block_border", "tree_deep", "unlikely_token", "stop_string_across_steps"),
        *("tool_call", "tool_call_at_step_end", "filter_at_length"),
    )
)
"""The situations that `once` may list."""
UNPROMISED: Final = ("plain_token", "context_short", "context_long", "likely_token", "later_turn")
"""Situations without a floor that no fault needs alone: a plain token is the token of a step without a draft."""
ALWAYS: Final = ("first_token",)
"""Situations of every answer."""
PARTS: Final = {
    "recovered_token": ("rejected_first", "rejected_middle", "rejected_last", "small_residual", "outside_truncation"),
    "bonus_token": ("kept_whole",),
    "row_reused": ("neighbour_joins",),
    "nothing_drafted": ("after_nothing_drafted",),
    "stop_string_in_draft": ("stop_string_across_steps",),
    "tool_call": ("tool_call_at_step_end",),
    "filter": ("filter_at_length",),
    # recorded suites waive both by the name that they had together
    "end_at_draft_end": ("end_at_last_draft", "end_at_bonus"),
}
"""Situations that cannot occur, or hardly, without another one; who waives that one waives them too."""
RESIDUALS: Final = (Protocol.CHAIN, Protocol.TREE, Protocol.BLOCK)
"""The rules that draw from a residual."""
COPYING: Final = ("ngram", "suffix", "prompt_lookup")
"""Proposers of foreign engines that may find nothing to draft."""
WARM: Final = 0.5
"""Temperature from which tokens with p below 0.1 are drawn in any run."""
WIDE: Final = 0.5
LOW: Final = 0.1
"""The least top_p and the greatest min_p for that."""


def often(arm: ArmRecord) -> Iterator[str]:
    """Situations that any run of the settings meets many times."""
    yield from CORE
    yield "row_reused"
    if _rows(arm) > 1:
        yield "mixed_lengths"
    if arm.effective.beside is not None or arm.effective.mixed is not None:
        yield "mixed_parameters"
    if CANCELLED in (arm.effective.beside or {}):
        yield "cancelled_neighbour"
    if arm.effective.proposer_shape == "tree":
        yield "tree_branch"
    if _filters(arm):
        yield "filter"
    header = _header(arm)
    if header is not None:
        yield from _parameters(header.sampling)


def once(arm: ArmRecord) -> Iterator[str]:
    """Situations that a run of moderate size should meet."""
    yield from ANYWHERE
    yield from _lengths(arm)
    if _rows(arm) > 1:
        yield from TOGETHER
    if arm.effective.proposer_shape == "tree":
        # a tree of fewer levels than a deep path cannot be accepted so far
        yield from ("tree_deep",) if drafts_deep(arm.requests) else ()
    elif _rows(arm) > 1 and arm.effective.steady_drafts is None:
        # steady drafts differ in length at the ends of requests only
        yield "mixed_drafts"
    if any(map(asks_for_calls, arm.requests)):
        # copies foresee no end of a call
        yield from ("tool_call", "tool_call_at_step_end") if arm.effective.steady_drafts else ("tool_call",)
    if _filters(arm) and any(request.finish_reason is FinishReason.LENGTH for request in arm.requests):
        yield "filter_at_length"
    if _may_skip(arm):
        yield "after_nothing_drafted"
    header = _header(arm)
    if header is not None:
        yield from _ends(arm, header)
        yield from _laws(arm, header.sampling)


def _may_skip(arm: ArmRecord) -> bool:
    """True if a step in the middle of an answer may draft nothing."""
    if not arm.ours:
        return arm.effective.proposer in COPYING
    return arm.effective.steady_drafts is None and arm.effective.proposer_shape != "tree"


def _filters(arm: ArmRecord) -> bool:
    return any(mapping.get("side") == Side.OUTPUT for mapping in declared_filters(arm.effective))


def _rows(arm: ArmRecord) -> int:
    return arm.effective.rows or 1


def _header(arm: ArmRecord) -> TraceHeader | None:
    return arm.requests[0].trace.header if len(arm.requests) else None


def _parameters(sampling: SamplingParams) -> Iterator[str]:
    if sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty:
        yield "penalty_in_draft"
    if sampling.logit_bias or sampling.bad_words:
        yield "ban_in_draft"
    if sampling.min_tokens > 1:
        yield "min_tokens_in_draft"
    if sampling.structured is not None:
        yield "grammar"
    if sampling.stop:
        yield "stop_string_in_draft"


def _lengths(arm: ArmRecord) -> Iterator[str]:
    """Only steady drafts promise places behind the first: others may end before they get there."""
    steady = arm.effective.steady_drafts
    if steady is None:
        return
    gamma = arm.effective.gamma or 0
    most = gamma if steady.most is None else min(gamma, steady.most)
    if most >= 2:
        yield "rejected_last"
    if most >= 3:
        yield "rejected_middle"
        yield "block_border"


def _ends(arm: ArmRecord, header: TraceHeader) -> Iterator[str]:
    sampling = header.sampling
    if sampling.stop_token_ids or (header.eos_ids and not sampling.ignore_eos):
        # nothing is drafted behind the only token of a draft; copies seldom end with an end token, and behind a
        # tree's last token are other branches
        steady = arm.effective.steady_drafts is not None and arm.effective.proposer_shape != "tree"
        rare = {"end_in_draft": arm.effective.gamma == 1, "end_at_last_draft": not steady}
        yield from (name for name in ENDS if not rare.get(name))
    if sampling.stop:
        yield "stop_string_across_steps"


def _laws(arm: ArmRecord, sampling: SamplingParams) -> Iterator[str]:
    if sampling.greedy:
        return
    # a stricter truncation may leave likely tokens only
    if sampling.temperature >= WARM and sampling.top_k != 1 and sampling.top_p >= WIDE and sampling.min_p <= LOW:
        yield "unlikely_token"
    if sampling.top_k > 1 or sampling.top_p < 1.0 or sampling.min_p > 0.0:
        yield "outside_truncation"
    # a copied draft leaves a small residual only if it is nearly certain and rejected all the same
    if arm.effective.protocol in RESIDUALS and arm.effective.steady_drafts is not None:
        yield "small_residual"
