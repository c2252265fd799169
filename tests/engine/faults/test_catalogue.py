"""What holds for every fault of the catalogue; a new one is picked up by itself."""

import ast
import dataclasses
import functools
import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.records import ArmKind, Evidence
from audit.evidence.verdicts import Verdict
from engine import faults, proposers, verify
from engine.core.errors import InvalidRequest
from engine.core.types import Protocol
from engine.decode.seams import EngineParts
from engine.faults.parameters import NO_MASKS
from engine.record.metrics import acceptance
from tests.bench.faults import PAGE, known_rows
from tests.engine.faults.arms import arm, arm_record, generate, same, traces
from tests.support.tiers import slow_unless

CLAIMS = {
    *("equality", "bitwise", "replay", "law", "acceptance", "closeness", "structure", "safety", "cost"),
    *("tools", "leak", "filters"),
}
PARTS = [each.name for each in dataclasses.fields(EngineParts)]

REQUESTS = 8
MORE_REQUESTS = {
    "lenient_0_1_percent": 32,
    "trimmed_by_own_probability": 16,
    "positions_off_by_one": 16,
    "ties_broken_differently": 32,
    "rejected_last_entry_stays": 16,
    "partial_prefix_taken_whole": 16,
    "rotation_changes_beyond_length": 16,
    "last_token_of_previous_request": 16,
    "rows_shifted_after_finish": 64,
    "stop_string_across_steps_missed": 32,
    "stop_string_out_of_window": 32,
    "drafts_padded_to_longest": 16,
}
"""Of 64 tokens each: what a rare fault, or a statistical check, needs."""
WRONG_ROWS = (
    "target_rows_shifted",
    "bonus_wrong_row",
    "rows_of_another_request",
    "positions_off_by_one",
    "prompt_end_read_twice",
    "stale_prefix_block",
    "kv_not_rolled_back",
    "kv_residue",
    "tree_mask_leaks",
    "tree_positions_flat",
    "wrong_path_gathered",
    "path_not_gathered",
    "deep_path_not_gathered",
    "last_accepted_entry_stale",
    "rejected_last_entry_stays",
    "history_lost_after_rejection",
    "page_border_entries_lost",
    "last_chunk_one_early",
    "partial_prefix_taken_whole",
    "rotation_changes_beyond_length",
    "positions_of_longest_row",
    "last_token_of_previous_request",
    "rows_shifted_after_finish",
)
"""Faults whose decisions are right for rows that are not: a comparison with a run that has other rows sees them."""
WRONG_MASKS = (
    "mask_on_draft_only",
    "mask_missing_on_bonus_token",
    "matcher_not_rolled_back",
    "matcher_advanced_by_rejected_tokens",
    "mask_of_another_row",
    "end_allowed_inside_answer",
)
"""Faults whose decisions are right under masks that are not the grammar's."""
SEEN_BY = (
    dict.fromkeys(WRONG_ROWS, "coupled_equality")
    | dict.fromkeys(WRONG_MASKS, "constraint_replay")
    | {
        "trimmed_by_own_probability": "law",
        "greedy_accepts_top2": "greedy_equality",
        "noise_keyed_by_draw": "coupled_equality",
        "forbidden_drafts_dropped": "law",
        "gamma_not_respected": "accounting",
        "drafted_rows_in_bfloat16": "greedy_equality",
        "tokens_after_stop_string": "coupled_equality",
        "stop_string_out_of_window": "coupled_equality",
        "stop_string_across_steps_missed": "coupled_equality",
        "call_recorded_twice": "tool_call_equality",
        "parser_fed_per_chunk": "tool_call_equality",
        "tool_arguments_cut_at_accept": "tool_call_equality",
        "tool_call_from_draft": "tool_call_equality",
        "text_out_of_order": "text",
        "chunk_before_verification": "no_leak",
        "stop_string_not_held": "no_leak",
        "filter_reads_drafts": "filter_equality",
        "filter_not_rolled_back": "filter_equality",
        "filter_per_step": "filter_equality",
        "filter_not_flushed_at_length": "filter_equality",
    }
)
"""The check that sees a fault, if it is not the replay, or that the fault is for."""
UNSEEN = {
    "trimmed_by_next_confidence": "what follows a token is unrelated to its rank in a scripted pair, and every order "
    "that the law check looks at is by rank or id; the exact law is compared below",
    "copies_from_previous_request": "the drafts are honest; only the seed check sees it, in other runs of the arm",
}
"""Faults that no check sees in their arena, and why."""
WORSE_DRAFTS = (
    "draft_one_behind",
    "wrong_aux_layers",
    "hidden_states_shifted",
    "draft_rewound_too_far",
    "draft_cache_of_previous_request",
    "draft_cache_not_filled",
    "draft_positions_clamped",
    "draft_vocabulary_shifted",
)
"""Faults after which drafts are as honest as before, and worse: only an acceptance known from elsewhere shows it."""


def clean_parts(protocol):
    return EngineParts(verifier=verify.load(protocol))


@functools.cache
def generations(name, broken):
    scenario = faults.load(name).scenario
    return generate(scenario, name if broken else None, MORE_REQUESTS.get(name, REQUESTS))


def one_of_each_theme(names):
    """The first of the names in each file of the catalogue."""
    first = {}
    for name in names:
        first.setdefault(faults.REGISTRY[name].partition(":")[0], name)
    return list(first.values())


SEEN = [name for name in faults.REGISTRY if name not in (*UNSEEN, *WORSE_DRAFTS)]


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_a_fault_says_what_it_is(name):
    fault = faults.load(name)
    assert fault.name == name
    assert fault.breaks in CLAIMS
    assert "#" in fault.upstream or fault.upstream.startswith("none known: ")
    assert "|" not in fault.upstream
    assert fault.scenario.proposer in proposers.REGISTRY
    assert fault.situation in CATALOGUE


def test_the_constant_of_a_fault_is_its_name_in_upper_case():
    constants = {name: entry.partition(":")[2] for name, entry in faults.REGISTRY.items()}
    assert constants == {name: name.upper() for name in faults.REGISTRY}


def test_a_theme_imports_no_other_theme():
    themes = {entry.partition(":")[0] for entry in faults.REGISTRY.values()}
    for theme in themes:
        tree = ast.parse(Path(importlib.import_module(theme).__file__).read_text(encoding="utf-8"))
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not imported & themes, theme


@pytest.mark.parametrize("name", faults.REGISTRY)
def test_a_fault_replaces_the_parts_that_its_page_names_and_no_others(name):
    clean = clean_parts(faults.load(name).scenario.protocol)
    before = {part: getattr(clean, part) for part in PARTS}
    broken = faults.break_parts(name, clean)
    assert {part: getattr(clean, part) for part in PARTS} == before
    named = known_rows(PAGE.read_text("utf-8"))[name].split(" | ")[2]
    assert {part for part in PARTS if getattr(broken, part) is not before[part]} == set(named.split(", "))


@pytest.mark.medium
@pytest.mark.parametrize("name", faults.REGISTRY)
def test_the_arena_suits_the_fault(name):
    fault = faults.load(name)
    suits, scenario = fault.suits, fault.scenario
    assert scenario.protocol in (suits.protocols or tuple(Protocol))
    assert suits.temperature in ("both", "greedy" if scenario.sampling.greedy else "sampled")
    config = arm(scenario, name).effective_config()
    assert suits.shape in (None, config.proposer_shape)
    assert ("penalties" in suits.needs) <= (not scenario.sampling.plain_scores)
    assert ("temperature" in suits.needs) <= (scenario.sampling.temperature != 1.0)
    assert ("truncation" in suits.needs) <= ((scenario.sampling.top_k, scenario.sampling.top_p) != (0, 1.0))
    assert ("masks" in suits.needs) <= any(getattr(scenario.sampling, key) != off for key, off in NO_MASKS.items())
    assert ("end tokens" in suits.needs) <= bool(scenario.sampling.stop_token_ids)
    assert ("stop strings" in suits.needs) <= bool(scenario.sampling.stop)
    assert ("stream" in suits.needs) == (scenario.stream is not None)
    assert ("filters" in suits.needs) == bool(scenario.stream and scenario.stream.filters)
    assert ("grammar" in suits.needs) <= (scenario.sampling.structured is not None)
    assert ("several requests" in suits.needs) <= (scenario.rows > 1)
    assert ("tools" in suits.needs) <= scenario.tools
    assert ("weights" in suits.needs) <= (scenario.models == "bundled")


@pytest.mark.medium
@pytest.mark.parametrize("name", faults.REGISTRY)
def test_the_effective_configuration_names_the_fault_and_nothing_else_changes(name):
    scenario = faults.load(name).scenario
    clean, broken = (each.effective_config().to_json() for each in (arm(scenario), arm(scenario, name)))
    assert (clean["fault"], broken["fault"]) == (None, name)
    assert {key for key in clean if clean[key] != broken[key]} == {"fault"}


@pytest.mark.medium
@pytest.mark.parametrize("name", slow_unless(faults.REGISTRY, one_of_each_theme(faults.REGISTRY)))
def test_a_fault_changes_what_is_emitted_or_what_is_recorded(name):
    clean, broken = generations(name, False), generations(name, True)
    told = [key for key in clean if (clean[key].tokens, clean[key].text) != (broken[key].tokens, broken[key].text)]
    if faults.load(name).seen_from == "text":
        assert told
    pairs = zip(traces(clean), traces(broken), strict=True)
    assert told or any(not same(first, second) for first, second in pairs)


@functools.cache
def references(name):
    """A plain run, and one more of it with one request at a time."""
    scenario, count = faults.load(name).scenario, MORE_REQUESTS.get(name, REQUESTS)
    effective = arm(scenario, proposer=False).effective_config()
    return (
        arm_record(generate(scenario, count=count, proposer=False), ArmKind.BASELINE, effective),
        arm_record(generate(replace(scenario, rows=1), count=count, proposer=False), ArmKind.CONTROL, effective),
    )


def verdict(check, name, broken):
    """On the arm, with a baseline and a control where the check compares with them."""
    compared = references(name) if check.endswith("equality") else ()
    effective = arm(faults.load(name).scenario, name if broken else None).effective_config()
    candidate = arm_record(generations(name, broken), effective=effective)
    return evaluate(checks.load(check), Evidence(candidate, *compared), {}).verdict


@pytest.mark.medium
@pytest.mark.parametrize("name", slow_unless(SEEN, one_of_each_theme(SEEN)))
def test_a_check_sees_the_fault_and_calls_the_clean_arm_none(name):
    check = SEEN_BY.get(name, "replay")
    clean, broken = (verdict(check, name, each) for each in (False, True))
    assert (clean is Verdict.FAULT, broken) == (False, Verdict.FAULT)


@pytest.mark.medium
@pytest.mark.parametrize(
    "name", slow_unless((*WRONG_ROWS, *WRONG_MASKS), ["bonus_wrong_row", "kv_not_rolled_back", "tree_mask_leaks"])
)
def test_decisions_on_wrong_rows_replay(name):
    assert verdict("replay", name, broken=True) is Verdict.CERTIFIED


@pytest.mark.parametrize("name", WORSE_DRAFTS)
@pytest.mark.slow
def test_worse_drafts_replay_and_are_kept_less_often(name):
    clean, broken = (acceptance(traces(generations(name, each))).draft_acceptance_rate for each in (False, True))
    assert verdict("replay", name, broken=True) is Verdict.CERTIFIED
    assert broken < 0.95 * clean


def test_the_lists_of_this_file_name_faults_that_there_are():
    assert {*SEEN_BY, *UNSEEN, *WORSE_DRAFTS, *MORE_REQUESTS} <= set(faults.REGISTRY)


def test_an_unknown_fault_is_refused():
    with pytest.raises(InvalidRequest, match="unknown fault"):
        faults.break_parts("nonesuch", clean_parts(Protocol.CHAIN))


def test_a_fault_of_another_rule_is_refused():
    with pytest.raises(InvalidRequest, match="sqrt_acceptance has no place in the gumbel rule; it breaks: chain"):
        faults.break_parts("sqrt_acceptance", clean_parts(Protocol.GUMBEL))
