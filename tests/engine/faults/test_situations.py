"""Without the situation that a fault needs, the broken engine is the clean one."""

import functools
from dataclasses import replace

import pytest

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.count import count
from engine import faults
from engine.core.types import SamplingParams
from engine.faults.interface import PromptLength
from engine.faults.wrappers import BatchView
from engine.proposers.interface import Context
from engine.sampling.rng import Randomness
from tests.audit.selftest.without_situations import NEVER_HELD
from tests.engine.build import requests
from tests.engine.faults.arms import arm, arm_record, generate, same, traces

REQUESTS = 4
ALONE, NOTHING_DRAFTED, NOBODY_BEFORE = {"rows": 1}, {"gamma": 0}, {"rows": REQUESTS}
CHAINS = {"proposer": "draft_model", "gamma": 3}
WITHOUT = {
    "parameters_of_first_row": {"beside": None},
    "top_k_of_neighbour": {"beside": None},
    "bad_words_of_first_rows": {"beside": None},
    "padding_penalised": ALONE,
    "positions_of_longest_row": ALONE,
    "drafts_padded_to_longest": {"options": {}},
    "last_token_of_previous_request": NOBODY_BEFORE,
    "numbers_of_the_row": NOBODY_BEFORE,
    "last_seed_wins": ALONE,
    "rows_shifted_after_finish": ALONE,
    "last_accepted_entry_stale": NOTHING_DRAFTED,
    "rejected_last_entry_stays": NOTHING_DRAFTED,
    "history_lost_after_rejection": NOTHING_DRAFTED,
    "page_border_entries_lost": NOTHING_DRAFTED,
    "last_chunk_one_early": {"prompt": PromptLength(3, 100)},
    "partial_prefix_taken_whole": {"shared": 0},
    "deep_path_not_gathered": CHAINS,
    "drafted_end_ignored": NOTHING_DRAFTED,
    "stop_string_out_of_window": NOTHING_DRAFTED,
    "bonus_after_end": NOTHING_DRAFTED,
    "bonus_end_ignored": NOTHING_DRAFTED,
    "call_recorded_twice": NOTHING_DRAFTED,
    "filter_not_flushed_at_length": {"stream": NEVER_HELD},
    "length_cut_short": NOTHING_DRAFTED,
    "min_tokens_at_step_start": NOTHING_DRAFTED,
    "penalties_without_draft": NOTHING_DRAFTED,
    "rejected_drafts_penalised": NOTHING_DRAFTED,
    "bad_words_one_early_in_draft": NOTHING_DRAFTED,
    "same_token_accepted": NOTHING_DRAFTED,
    "residual_with_epsilon": NOTHING_DRAFTED,
    "recovered_from_next_row": NOTHING_DRAFTED,
    "draft_rewound_too_far": {"gamma": 1, "sampling": SamplingParams(max_new_tokens=2)},
    "draft_cache_not_filled": {"options": {}},
    "copies_from_previous_request": NOBODY_BEFORE,
    "draft_positions_clamped": {"sampling": SamplingParams(temperature=1.0, max_new_tokens=12)},
}
"""Changes of a fault's scenario that take its situation away."""


@pytest.mark.medium
@pytest.mark.parametrize("name", WITHOUT)
def test_without_its_situation_a_fault_changes_nothing(name):
    scenario = replace(faults.load(name).scenario, **WITHOUT[name])
    clean, broken = (generate(scenario, fault, REQUESTS) for fault in (None, name))
    assert {key: each.tokens for key, each in clean.items()} == {key: each.tokens for key, each in broken.items()}
    assert all(map(same, traces(clean), traces(broken)))


@functools.cache
def reached(scenario_of):
    """Occurrences by situation in the clean arm of a fault's scenario, counted from its record."""
    scenario = faults.load(scenario_of).scenario
    effective = arm(scenario).effective_config()
    return count(arm_record(generate(scenario, count=16), effective=effective), {}).occurred


def scenarios():
    """The first fault of each pair of scenario and situation."""
    first = {}
    for name in faults.REGISTRY:
        fault = faults.load(name)
        first.setdefault((repr(fault.scenario), fault.situation), name)
    return list(first.values())


@pytest.mark.parametrize("name", scenarios())
@pytest.mark.slow
def test_a_scenario_brings_its_situation_about(name):
    situation = faults.load(name).situation
    if CATALOGUE[situation].recognise is not None:
        assert reached(name)[situation] > 0


def test_every_fault_names_a_situation_of_the_catalogue():
    assert {faults.load(name).situation for name in faults.REGISTRY} <= set(CATALOGUE)


def context(row, request):
    return Context(row, request, list(request.prompt), 4, Randomness(0, row))


def test_a_view_of_the_batch_knows_the_request_that_held_a_row_before():
    view, (first, second, third) = BatchView(), requests(3, SamplingParams())
    contexts = [context(0, first), context(1, second)]
    for admitted in contexts:
        view.admit(admitted)
    view.step(contexts)
    assert (view.of(contexts[1].history), view.before(0), view.finished) == (contexts[1], None, 0)
    view.release(0)
    late = context(0, third)
    view.admit(late)
    view.step([late, contexts[1]])
    assert (view.before(0), view.first(0), view.finished, view.steps) == (contexts[0], contexts[0], 1, 2)
    assert list(view.active) == [0, 1]
    view.clear()
    assert (view.active, view.before(0), view.of(late.history)) == ({}, None, None)
