"""What faults of the target, the rows, the ends and the record change, and what they leave alone."""

from dataclasses import replace

import numpy as np
import pytest

from engine import faults, verify
from engine.core.types import FinishReason, Protocol, Role, SamplingParams, Tree
from engine.decode.seams import EngineParts
from engine.faults import break_parts
from engine.faults.cache import StaleColumns
from engine.faults.wrappers import Step, StepEnds, with_inputs
from engine.models.interface import TargetModel, WrappedModel
from engine.record.metrics import acceptance
from engine.sampling.rng import Purpose, Randomness
from tests.engine.build import Setup, make_loop, requests
from tests.engine.faults.arms import generate, traces

SAMPLED = SamplingParams(temperature=0.9, presence_penalty=0.5, max_new_tokens=30, seed=3)
ENDS = (2, 9, 17, 28)
DRAFTING_ALONE = ("draft_one_behind", "drafts_of_another_request", "wrong_aux_layers", "hidden_states_shifted")


def arena_of(name):
    return faults.load(name).scenario


def emitted(name, fault=None, **changes):
    generations = generate(replace(arena_of(name), **changes), fault, 8)
    return {key: each.tokens for key, each in generations.items()}


def parts_of(protocol=Protocol.CHAIN):
    return EngineParts(verifier=verify.load(protocol))


def tokens_with(setup, change):
    loop = make_loop(setup)
    change(loop)
    return {each.request.id: each.tokens for each in loop.run(requests(6, SAMPLED))}


# what faults are made of is the real thing until something is changed


@pytest.mark.medium
def test_a_wrapped_model_is_the_model_that_it_wraps():
    setup = Setup(rows=3)
    wrapped = tokens_with(setup, lambda loop: setattr(loop, "_target", WrappedModel(loop._target)))
    assert wrapped == tokens_with(setup, lambda loop: None)
    assert isinstance(WrappedModel(make_loop(setup)._target), TargetModel)


@pytest.mark.medium
def test_rows_from_unchanged_inputs_are_the_rows():
    parts = with_inputs(lambda inputs: inputs)(parts_of())
    plain = tokens_with(Setup(rows=3), lambda loop: None)
    assert tokens_with(Setup(rows=3), lambda loop: setattr(loop, "_parts", parts)) == plain


@pytest.mark.medium
def test_columns_that_are_never_reached_are_not_stale():
    def change(loop):
        loop._target = StaleColumns(loop._target, every=10_000)

    # column 0 holds the prompt's first token, which is written once
    assert tokens_with(Setup(rows=2), change) == tokens_with(Setup(rows=2), lambda loop: None)


def test_the_last_tokens_of_steps_are_learned_from_a_history_that_grows():
    ends, history = StepEnds(), [5, 6]
    assert ends.before(Step(history, 2, Tree())) == ()
    history.extend([7, 8, 9])
    assert ends.before(Step(history, 2, Tree())) == (9,)
    history.append(3)
    assert ends.before(Step(history, 2, Tree())) == (9, 3)
    assert ends.before(Step([1, 2], 2, Tree())) == ()


# the target and its cache


@pytest.mark.medium
@pytest.mark.parametrize("name", ["bonus_wrong_row", "rows_of_another_request", "target_rows_shifted"])
def test_plain_decoding_beside_nobody_has_no_wrong_row(name):
    scenario = replace(arena_of(name), proposer="ngram", drafts=0, gamma=0, options={}, rows=1)
    clean, broken = (generate(scenario, fault, 4) for fault in (None, name))
    assert {key: each.tokens for key, each in clean.items()} == {key: each.tokens for key, each in broken.items()}


@pytest.mark.medium
def test_only_the_second_request_of_a_row_reads_a_stale_block():
    clean, broken = emitted("stale_prefix_block"), emitted("stale_prefix_block", "stale_prefix_block")
    assert all(clean[f"r{i}"] == broken[f"r{i}"] for i in range(2))
    assert clean != broken


@pytest.mark.medium
@pytest.mark.parametrize("name", ["kv_residue", "kv_not_rolled_back"])
def test_without_drafts_nothing_is_left_in_the_cache(name):
    assert emitted(name, None, gamma=0) == emitted(name, name, gamma=0)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["tree_mask_leaks", "tree_positions_flat", "path_not_gathered"])
def test_trees_that_are_chains_are_right(name):
    chain = {"proposer": "draft_model", "gamma": 3}
    assert emitted(name, None, **chain) == emitted(name, name, **chain)


@pytest.mark.parametrize("name", DRAFTING_ALONE)
@pytest.mark.slow
def test_faults_of_drafting_alone_leave_a_coupled_arm_as_it_is(name):
    coupled = {"protocol": Protocol.GUMBEL}
    assert emitted(name, None, **coupled) == emitted(name, name, **coupled)


# the rows


def rows_with(name, sampling, history, tree, n_prompt=2):
    broken = break_parts(name, parts_of())
    return broken.rows(np.linspace(1.0, 2.0, 4 * (1 + len(tree))).reshape(-1, 4), tree, history, n_prompt, sampling, ())


def test_a_forbidden_token_comes_out_of_a_drafted_row_without_masks():
    sampling = SamplingParams(temperature=1.0, bad_words=((3,),))
    rows = rows_with("masks_missing_on_drafted_rows", sampling, [0, 1], Tree.chain((2,)))
    assert rows[0].p[3] > 0
    assert rows[1].p[3] == 0


def test_the_last_row_is_without_penalties_and_the_others_are_not():
    sampling = SamplingParams(temperature=1.0, frequency_penalty=1.0)
    rows = rows_with("penalties_missing_on_bonus_row", sampling, [0, 1, 2], Tree.chain((2,)))
    assert rows[0].scores[2] == rows.logits[0][2] - 1
    assert rows[1].scores[2] == rows.logits[1][2]


def test_penalties_count_the_last_token_of_each_step_only():
    sampling = SamplingParams(temperature=1.0, frequency_penalty=1.0)
    broken, logits = break_parts("penalties_per_step", parts_of()), np.zeros((2, 4))
    history = [0, 1]
    broken.rows(logits, Tree.chain((2,)), history, 2, sampling, ())
    history.extend([2, 2, 3])
    rows = broken.rows(logits, Tree.chain((2,)), history, 2, sampling, ())
    assert rows[1].scores.tolist() == [0, 0, 0, -1]


def test_drafted_tokens_are_counted_twice():
    sampling = SamplingParams(temperature=1.0, frequency_penalty=1.0)
    rows = rows_with("penalties_double_counted", sampling, [0, 1, 3], Tree.chain((2,)))
    assert (rows.logits[1] - rows[1].scores).tolist() == [0, 0, 2, 1]


@pytest.mark.medium
def test_end_tokens_stay_forbidden_for_as_many_steps_as_tokens_were_asked_for():
    clean, broken = emitted("min_tokens_in_steps"), emitted("min_tokens_in_steps", "min_tokens_in_steps")
    assert min(map(len, clean.values())) >= 8
    assert np.mean([len(each) for each in broken.values()]) > np.mean([len(each) for each in clean.values()])


@pytest.mark.medium
def test_every_first_token_was_drafted():
    found = traces(generate(arena_of("first_token_from_draft"), "first_token_from_draft", 8))
    assert all(trace.token[0] == trace.node_token[0] for trace in found)


def test_a_tie_goes_to_the_last_token():
    sampling = SamplingParams(temperature=0.0)
    rows = break_parts("ties_broken_differently", parts_of(Protocol.GREEDY)).rows(
        np.array([[4.0, 4.001, 1.0, 4.002, 3.0]]), Tree(), [0, 1], 2, sampling, ()
    )
    assert rows.best(0) == 3


# drafts, numbers and verdicts


@pytest.mark.medium
def test_dropped_drafts_are_drawn_without_the_mask_and_never_offered():
    name = "forbidden_drafts_dropped"
    forbidden = [word[0] for word in arena_of(name).sampling.bad_words]
    for trace in traces(generate(arena_of(name), name, 8)):
        assert not np.isin(trace.node_token, forbidden).any()
        assert (trace.q_rows[:, forbidden].sum(axis=1) > 0).any()


def test_a_request_has_the_numbers_of_the_one_before_it():
    numbers = break_parts("numbers_of_another_request", parts_of()).numbers
    drawn = [numbers(5, stream).uniform(3, Purpose.ACCEPT) for stream in (7, 8, 9)]
    assert drawn == [Randomness(5, stream).uniform(3, Purpose.ACCEPT) for stream in (7, 7, 8)]


@pytest.mark.medium
def test_a_refused_token_is_emitted_beside_its_replacement():
    name = "rejected_token_leaks"
    leaks = sum(
        int((trace.role == Role.ACCEPTED).sum()) - int(trace.examined_accepted.sum())
        for trace in traces(generate(arena_of(name), name, 8))
    )
    assert leaks > 0


# the ends


def test_tokens_after_an_end_token_are_emitted():
    name = "tokens_after_end_token"
    assert all(token not in ENDS for tokens in emitted(name).values() for token in tokens[:-1])
    assert any(token in ENDS for tokens in emitted(name, name).values() for token in tokens[:-1])


@pytest.mark.medium
def test_a_response_that_overran_is_one_token_too_long():
    clean, broken = emitted("length_overrun"), emitted("length_overrun", "length_overrun")
    assert {key: len(each) for key, each in broken.items()} == {key: 1 + len(each) for key, each in clean.items()}


def test_every_response_says_that_it_ran_out_of_tokens():
    scenario = arena_of("finish_reason_wrong")
    clean, broken = (generate(scenario, fault, 8).values() for fault in (None, "finish_reason_wrong"))
    assert {each.finish_reason for each in broken} == {FinishReason.LENGTH}
    assert FinishReason.STOP in {each.finish_reason for each in clean}


# the record


def recorded(name):
    clean, broken = (generate(arena_of(name), fault, 8) for fault in (None, name))
    assert {key: each.tokens for key, each in clean.items()} == {key: each.tokens for key, each in broken.items()}
    return traces(broken)


@pytest.mark.medium
def test_every_token_is_recorded_as_certain():
    assert all((trace.logprob == 0).all() for trace in recorded("logprobs_zero"))


@pytest.mark.medium
def test_only_tokens_after_the_first_of_a_step_have_a_wrong_log_probability():
    name = "logprob_rows_shifted"
    pairs = list(zip(traces(generate(arena_of(name), None, 8)), recorded(name), strict=True))
    for clean, broken in pairs:
        first = np.cumsum(clean.n_emitted) - clean.n_emitted
        assert np.array_equal(clean.logprob[first], broken.logprob[first])
    assert any(not np.array_equal(clean.logprob, broken.logprob) for clean, broken in pairs)


@pytest.mark.medium
def test_all_that_was_drafted_seems_to_be_kept():
    assert acceptance(recorded("accepted_counted_as_drafted")).draft_acceptance_rate == 1


@pytest.mark.medium
def test_no_step_seems_to_have_kept_nothing_of_its_draft():
    found = acceptance(recorded("drafts_not_recorded"))
    assert found.kept[0] == found.drafting_steps < found.steps


@pytest.mark.medium
def test_one_more_is_counted_in_every_drafting_step():
    clean = acceptance(traces(generate(arena_of("acceptance_inflated"), None, 8)))
    inflated = acceptance(recorded("acceptance_inflated"))
    # steps that the length limit cut end in an accepted token already
    assert clean.accepted + 0.9 * clean.drafting_steps < inflated.accepted <= clean.accepted + clean.drafting_steps
