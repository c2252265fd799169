"""The situations that an arm's own settings make possible, of which a run must show some before it may pass.

`often` lists those that every run of these settings meets again and again; their floor
is a suite's `least`. `once` lists those that a run of moderate size meets: their floor
is one occurrence, because copying proposers, short runs or few requests meet them
rarely. Situations that depend on the prompts or on how answers end have no floor:
settings alone promise none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from audit.evidence.coverage.drafting import drafts_deep
from audit.evidence.records import ArmRecord
from engine.core.types import SamplingParams

CORE: Final = ("recovered_token", "bonus_token", "after_rejection", "after_kept_whole")
"""Every arm that speculates rejects drafts, keeps some whole, and goes on after both."""
ONCE: Final = frozenset(
    (
        *("rejected_first", "rejected_middle", "rejected_last", "kept_whole", "outside_truncation"),
        *("neighbour_joins", "mixed_drafts", "block_border", "tree_deep", "unlikely_token", "near_tie"),
    )
)
"""The situations that `once` may list."""
UNPROMISED: Final = (
    *("nothing_drafted", "after_nothing_drafted", "plain_token", "small_residual", "end_in_draft", "end_at_draft_end"),
    *("length_in_draft", "rows_finish_together", "long_prompt", "shared_prefix"),
    *("context_short", "context_medium", "context_long", "likely_token"),
)
"""The situations without a floor that records show: whether they occur depends on prompts and ends."""
PARTS: Final = {
    "recovered_token": ("rejected_first", "rejected_middle", "rejected_last", "outside_truncation"),
    "bonus_token": ("kept_whole",),
    "row_reused": ("neighbour_joins",),
}
"""Situations that cannot occur without another one; who waives that one waives them too."""
WARM: Final = 0.5
"""Temperature from which tokens with p below 0.1 are drawn in any run."""
WIDE: Final = 0.5
LOW: Final = 0.1
"""The least top_p and the greatest min_p for that."""
MANY: Final = 2000
"""Emitted tokens from which a near-tie is expected: one token in 20 to 500 is one; under 2 % of runs lack it."""


def often(arm: ArmRecord) -> Iterator[str]:
    """Situations that any run of the settings meets many times."""
    yield from CORE
    yield "row_reused"
    if _rows(arm) > 1:
        yield "mixed_lengths"
    if arm.effective.beside is not None or arm.effective.mixed is not None:
        yield "mixed_parameters"
    if arm.effective.proposer_shape == "tree":
        yield "tree_branch"
    sampling = _sampling(arm)
    if sampling is not None:
        yield from _parameters(sampling)


def once(arm: ArmRecord) -> Iterator[str]:
    """Situations that a run of moderate size meets."""
    yield from ("rejected_first", "kept_whole")
    yield from _lengths(arm)
    if _rows(arm) > 1:
        yield "neighbour_joins"
    if arm.effective.proposer_shape == "tree":
        # a tree of fewer levels than a deep path cannot be accepted so far
        yield from ("tree_deep",) if drafts_deep(arm.requests) else ()
    elif _rows(arm) > 1 and arm.effective.steady_drafts is None:
        # steady drafts differ in length at the ends of requests only
        yield "mixed_drafts"
    if sum(len(request.tokens) for request in arm.requests) >= MANY:
        yield "near_tie"
    sampling = _sampling(arm)
    if sampling is not None:
        yield from _laws(sampling)


def _rows(arm: ArmRecord) -> int:
    return arm.effective.rows or 1


def _sampling(arm: ArmRecord) -> SamplingParams | None:
    return arm.requests[0].trace.header.sampling if len(arm.requests) else None


def _parameters(sampling: SamplingParams) -> Iterator[str]:
    if sampling.repetition_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty:
        yield "penalty_in_draft"
    if sampling.logit_bias or sampling.bad_words:
        yield "ban_in_draft"
    if sampling.min_tokens > 1:
        yield "min_tokens_in_draft"
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


def _laws(sampling: SamplingParams) -> Iterator[str]:
    if sampling.greedy:
        return
    # a stricter truncation may leave likely tokens only
    if sampling.temperature >= WARM and sampling.top_k != 1 and sampling.top_p >= WIDE and sampling.min_p <= LOW:
        yield "unlikely_token"
    if sampling.top_k > 1 or sampling.top_p < 1.0 or sampling.min_p > 0.0:
        yield "outside_truncation"
