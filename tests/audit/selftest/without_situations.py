"""Suites in which one situation with a floor never occurs, each with a fault that needs the situation.

Every suite is a default suite of the fault's scenario with the changes that take the situation away. Some of these
changes take other situations away as well, which the tests do not mind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from audit.evidence.coverage.expected import PARTS
from audit.evidence.coverage.rule import CoverageRule
from audit.selftest.default_suite import default_suite
from audit.suite.spec import Suite
from engine import faults
from engine.backends.native import ALPHABET
from engine.core.structured import ConstraintKind, ConstraintSpec
from engine.core.types import SamplingParams
from engine.stream.interface import StreamSpec, filter_spec

BITWISE = ("accounting", "bitwise")


@dataclass(frozen=True)
class Without:
    """What keeps a situation away from the scenario of `fault`; `same_draft` drafts with the target itself."""

    fault: str
    scenario: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    suite: Mapping[str, Any] = field(default_factory=dict)
    prompts: str | tuple[str, ...] | None = None
    """The same text for every prompt, or one for each."""
    same_draft: bool = False
    beside_itself: bool = False
    """The neighbours have the arm's own parameters."""
    requests: int = 8
    checks: tuple[str, ...] = ("accounting", "replay")
    """Checks that certify so few tokens, one of them about the situation."""


NEVER_ENDED = {"stop_token_ids": (2,), "logit_bias": ((2, -100.0),)}
"""No answer has its end token."""
ANYTHING = ConstraintSpec(ConstraintKind.REGEX, "[a-z ,.?!]*")
"""Allows every letter of a scripted model, and an end after each."""
NEVER_REJECTED = {"same_draft": True}
NEVER_KEPT = {"scenario": {"gamma": 20}}
IN_STEP = {"same_draft": True, "scenario": {"gamma": 5}, "suite": {"mixed": False}}
"""Every step emits six tokens, and every request ends after four."""
NEVER_MET = StreamSpec((filter_spec("patterns", "redact", "output", {"categories": {"never": ["zzzzzzzzz"]}}),))
NEVER_HELD = StreamSpec((filter_spec("patterns", "redact", "output", {"categories": {"never": ["#"]}}),))
NEVER_CALLED = {"logit_bias": tuple((ALPHABET.index(letter), -100.0) for letter in "aeiou")}
WITHOUT = {
    "recovered_token": Without("greedy_recovered_token", **NEVER_REJECTED),
    "after_rejection": Without("kv_not_rolled_back", **NEVER_REJECTED),
    "bonus_token": Without("bonus_repeats_token", **NEVER_KEPT),
    "after_kept_whole": Without("last_accepted_entry_stale", sampling={"max_new_tokens": 5}),
    "row_reused": Without("numbers_of_the_row", suite={"batch_size": 64}),
    "mixed_lengths": Without("positions_of_longest_row", suite={"mixed": False}, prompts="abcd", same_draft=True),
    "mixed_parameters": Without("parameters_of_first_row", suite={"mixed": False}, beside_itself=True),
    "penalty_in_draft": Without(
        "penalties_per_step",
        sampling={"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.3},
        prompts=ALPHABET,
    ),
    "grammar": Without("mask_on_draft_only", sampling={"structured": ANYTHING}, checks=("constraint_replay", "replay")),
    "ban_in_draft": Without("bad_words_one_early_in_draft", sampling={"bad_words": ((7,) * 9,)}),
    "min_tokens_in_draft": Without("min_tokens_in_steps", sampling={"min_tokens": 24}),
    "stop_string_in_draft": Without("tokens_after_stop_string", sampling={"stop": ("zzzzzzzzz",)}),
    "filter_at_length": Without(
        "filter_not_flushed_at_length", scenario={"stream": NEVER_HELD}, checks=("accounting", "no_leak")
    ),
    "filter": Without("filter_per_step", scenario={"stream": NEVER_MET}, checks=("accounting", "no_leak")),
    "tree_branch": Without("path_not_gathered", scenario={"options": {"widths": "1,1,1"}}),
    "rejected_first": Without("sqrt_acceptance", **NEVER_REJECTED),
    "rejected_middle": Without("draft_rows_shifted", sampling={"max_new_tokens": 2}),
    "rejected_last": Without("last_draft_unverified", **NEVER_REJECTED),
    "kept_whole": Without("bonus_dropped", **NEVER_KEPT, sampling={"temperature": 0.0}, prompts="q"),
    "outside_truncation": Without("truncation_missing_on_drafted_rows", sampling={"top_k": 64, "top_p": 1.0}),
    "neighbour_joins": Without("last_seed_wins", suite={"mixed": False}, requests=1),
    "mixed_drafts": Without(
        "drafts_padded_to_longest", **{**IN_STEP, "scenario": {"gamma": 5, "options": {"stop_below": 1e-9}}}
    ),
    "block_border": Without(
        "page_border_entries_lost", sampling={"max_new_tokens": 11}, prompts="abcd", requests=24, checks=BITWISE
    ),
    "unlikely_token": Without(
        "trimmed_by_own_probability", sampling={"logit_bias": ((7, 100.0),)}, requests=10, checks=BITWISE
    ),
    "near_tie": Without(
        "ties_broken_differently", sampling={"max_new_tokens": 128}, prompts="q", requests=16, checks=BITWISE
    ),
    "nothing_drafted": Without(
        "truncation_missing_without_draft",
        same_draft=True,
        scenario={"proposer": "draft_model", "drafts": 1, "gamma": 5},
    ),
    "after_nothing_drafted": Without(
        "draft_cache_not_filled", scenario={"options": {"stop_below": 1e-9}}, checks=("accounting", "draft_anchor")
    ),
    "small_residual": Without("rejected_token_recovered", sampling={"temperature": 0.9, "max_new_tokens": 12}),
    "length_in_draft": Without(
        "length_overrun", sampling={"max_new_tokens": 128, "stop_token_ids": (2, 9, 17, 28)}, requests=24
    ),
    "end_in_draft": Without("drafted_end_ignored", sampling=NEVER_ENDED),
    "end_at_last_draft": Without("bonus_after_end", sampling=NEVER_ENDED),
    "end_at_bonus": Without("bonus_end_ignored", sampling=NEVER_ENDED),
    "stop_string_across_steps": Without("stop_string_across_steps_missed", sampling={"stop": ("e", "k", "q", "w")}),
    "rows_finish_together": Without("rows_shifted_after_finish", suite={"mixed": False}, requests=1),
    "long_prompt": Without("last_chunk_one_early", prompts="abcd", requests=16, checks=BITWISE),
    "shared_prefix": Without("partial_prefix_taken_whole", prompts=tuple(ALPHABET[:16]), requests=16, checks=BITWISE),
    "context_medium": Without(
        "draft_positions_clamped",
        sampling={"max_new_tokens": 24},
        prompts="abcd",
        checks=("accounting", "draft_anchor"),
    ),
    "tool_call": Without("parser_fed_per_chunk", sampling=NEVER_CALLED, checks=("accounting", "tool_call_equality")),
    "tool_call_at_step_end": Without(
        "call_recorded_twice", sampling=NEVER_CALLED, checks=("accounting", "tool_call_equality")
    ),
    "tree_deep": Without("deep_path_not_gathered", sampling={"temperature": 0.0}, prompts="a"),
}
"""By situation."""


def suite_without(situation: str, fault: str | None) -> Suite:
    """The suite in which the situation never occurs."""
    change = WITHOUT[situation]
    scenario = faults.load(change.fault).scenario
    sampling = replace(scenario.sampling, **{"max_new_tokens": 24, **change.sampling})
    tokens = change.requests * sampling.max_new_tokens
    suite = default_suite(replace(scenario, sampling=sampling, **change.scenario), fault, 0, tokens)
    texts = (change.prompts,) * len(suite.cases) if isinstance(change.prompts, str) else change.prompts
    cases = suite.cases if texts is None else [replace(c, prompt=t) for c, t in zip(suite.cases, texts, strict=True)]
    models = dict(suite.models)
    if change.same_draft:
        models["draft"] = replace(models["draft"], source=models["target"].source)
    beside: SamplingParams | None = sampling if change.beside_itself else None
    arms = tuple(replace(arm, beside=beside) for arm in suite.arms)
    return replace(suite, cases=tuple(cases), models=models, arms=arms, **change.suite)


def only_floor(suite: Suite, situation: str) -> Suite:
    """The suite with the checks that certify few tokens, and with the situation's floor only."""
    others = tuple(name for name in WITHOUT if name != situation)
    # a part of a waived situation is waived too, unless it is demanded
    parts = {part for listed in PARTS.values() for part in listed}
    rule = CoverageRule(waive=others, demand=(situation,) if situation in parts else ())
    checks: dict[str, dict[str, Any]] = {name: {} for name in WITHOUT[situation].checks}
    return replace(suite, arms=tuple(replace(arm, checks=checks, coverage=rule) for arm in suite.arms))
