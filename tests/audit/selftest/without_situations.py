"""Suites in which one situation with a floor never occurs, each with a fault that needs the situation.

Every suite is a default suite of the fault's scenario with the changes that take the situation away. Some of these
changes take other situations away as well, which the tests do not mind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from audit.evidence.coverage.rule import CoverageRule
from audit.selftest.default_suite import default_suite
from audit.suite.spec import Suite
from engine import faults
from engine.backends.scripted import ALPHABET
from engine.core.types import SamplingParams

TOKENS = 192
"""8 requests of 24 tokens."""


@dataclass(frozen=True)
class Without:
    """What keeps a situation away from the scenario of `fault`; `same_draft` drafts with the target itself."""

    fault: str
    scenario: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    suite: Mapping[str, Any] = field(default_factory=dict)
    prompts: str | None = None
    """The same text for every prompt."""
    same_draft: bool = False
    beside_itself: bool = False
    """The neighbours have the arm's own parameters."""


NEVER_REJECTED = {"same_draft": True}
NEVER_KEPT = {"scenario": {"gamma": 20}}
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
    "ban_in_draft": Without("bad_words_one_early_in_draft", sampling={"bad_words": ((7,) * 9,)}),
    "min_tokens_in_draft": Without("min_tokens_in_steps", sampling={"min_tokens": 24}),
    "stop_string_in_draft": Without("tokens_after_stop_string", sampling={"stop": ("zzzzzzzzz",)}),
    "tree_branch": Without("path_not_gathered", scenario={"options": {"widths": "1,1,1"}}),
}
"""By situation."""


def suite_without(situation: str, fault: str | None) -> Suite:
    """The suite in which the situation never occurs."""
    change = WITHOUT[situation]
    scenario = faults.load(change.fault).scenario
    sampling = replace(scenario.sampling, **{"max_new_tokens": 24, **change.sampling})
    tokens = TOKENS * sampling.max_new_tokens // 24
    suite = default_suite(replace(scenario, sampling=sampling, **change.scenario), fault, 0, tokens)
    cases = suite.cases if change.prompts is None else [replace(case, prompt=change.prompts) for case in suite.cases]
    models = dict(suite.models)
    if change.same_draft:
        models["draft"] = replace(models["draft"], source=models["target"].source)
    beside: SamplingParams | None = sampling if change.beside_itself else None
    arms = tuple(replace(arm, beside=beside) for arm in suite.arms)
    return replace(suite, cases=tuple(cases), models=models, arms=arms, **change.suite)


def only_floor(suite: Suite, situation: str, rule: CoverageRule | None = None) -> Suite:
    """The suite with two checks that certify few tokens and need no other arm, and with the situation's floor only."""
    others = tuple(name for name in WITHOUT if name != situation)
    change = {"checks": {"accounting": {}, "replay": {}}, "coverage": rule or CoverageRule(waive=others)}
    return replace(suite, arms=tuple(replace(arm, **change) for arm in suite.arms))
