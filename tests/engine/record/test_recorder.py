"""The recorder: what each level holds, and that what it holds is true."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from blake3 import blake3
from scipy.special import log_softmax, logsumexp

from engine.core.types import (
    Emitted,
    Examined,
    FinishReason,
    Proposal,
    Protocol,
    QKind,
    RecordLevel,
    Request,
    Role,
    SamplingParams,
    StepOutcome,
    Timing,
    Tree,
)
from engine.models.interface import to_numpy
from engine.record.recorder import Recorder, to_trace
from engine.record.rows.reduction import reduce
from engine.record.rows.row_digests import digests
from engine.record.trace import decode, steps_of
from engine.sampling.transforms import transform
from tests.engine.build import Setup, generate, requests, traces
from tests.support.records import header, plain_step
from tests.support.tiers import slow_unless

SAMPLED = SamplingParams(temperature=0.8, max_new_tokens=30, seed=4, repetition_penalty=1.2, bad_words=((3,),))
NAN = float("nan")
ALWAYS = (
    "position n_drafted n_examined n_emitted q_kind draft_us verify_us batch node_token node_parent "
    "examined_node examined_accepted token role row"
).split()
SCALARS = (
    "residual_mass node_uniform examined_p examined_q examined_uniform p uniform logprob margin logits_digest"
).split()
TOPS = ["top_id", "top_score", "top_lse"]
ROWS = ["logits", "q_rows"]
CELL_COLUMNS = [
    *("cell_id", "cell_p", "cell_q", "tail", "row_p", "p_below", "q_token"),
    *("residual_below", "residual_sum", "product", "q_below"),
]
HELD = {
    RecordLevel.TOKENS: ALWAYS,
    RecordLevel.SCALARS: ALWAYS + SCALARS,
    RecordLevel.TOPK: ALWAYS + SCALARS + TOPS + CELL_COLUMNS,
    RecordLevel.FULL: ALWAYS + SCALARS + ROWS,
}


def one(level=RecordLevel.FULL, protocol=Protocol.CHAIN, sampling=SAMPLED, vocabulary=8, proposer="draft_model"):
    setup = Setup(proposer, protocol, level=level, vocabulary=vocabulary)
    return traces(generate(setup, requests(3, sampling, vocabulary)))["r2"]


@pytest.mark.medium
@pytest.mark.parametrize("level", list(RecordLevel))
@pytest.mark.parametrize("protocol", slow_unless(list(Protocol), [Protocol.CHAIN, Protocol.GUMBEL, Protocol.TREE]))
def test_a_level_holds_what_it_promises_and_nothing_else(level, protocol):
    trace, full = one(level, protocol), one(RecordLevel.FULL, protocol)
    for name in ALWAYS + SCALARS + TOPS + ROWS + CELL_COLUMNS:
        column = getattr(trace, name)
        assert (column.size > 0) == (name in HELD[level]), name
        if column.size and name in HELD[RecordLevel.FULL] and not name.endswith("_us"):
            np.testing.assert_array_equal(column, getattr(full, name), name)


def test_columns_have_the_lengths_that_the_steps_count():
    trace = one()
    assert {len(getattr(trace, name)) for name in ("n_drafted", "n_examined", "n_emitted", "residual_mass")} == {
        trace.steps
    }
    assert trace.n_drafted.sum() == len(trace.node_token) == len(trace.node_uniform)
    assert trace.n_examined.sum() == len(trace.examined_p) == len(trace.q_rows)
    assert trace.n_emitted.sum() == len(trace.token) == len(trace.logits) == len(trace.p)


def test_every_drafted_token_is_kept_also_those_that_were_never_examined():
    trace = one()
    assert trace.n_drafted.sum() > trace.n_examined.sum()
    assert np.isfinite(trace.node_uniform).all()


@pytest.mark.parametrize("protocol", list(Protocol))
def test_scalars_are_those_of_the_rows(protocol):
    sampling = replace(SAMPLED, temperature=0.0) if protocol is Protocol.GREEDY else SAMPLED
    trace = one(protocol=protocol, sampling=sampling)
    history = [*trace.header.prompt, *trace.tokens]
    start = len(trace.header.prompt)
    for at, token in enumerate(trace.tokens):
        row = transform(trace.logits[at], history[: start + at], start, sampling, ())
        assert trace.p[at] == row.p[token]
        assert trace.logprob[at] == pytest.approx(log_softmax(trace.logits[at])[token], abs=1e-12)
        ordered = np.sort(row.scores)
        assert trace.margin[at] == ordered[-1] - ordered[-2]
    known = trace.examined_q[~np.isnan(trace.examined_q)]
    assert np.all(known > 0)


@pytest.mark.medium
def test_q_rows_are_those_of_the_examined_nodes():
    trace = one()
    for step in steps_of(trace):
        tokens = trace.node_token[step.nodes]
        for x in range(step.examined.start, step.examined.stop):
            assert trace.q_rows[x].sum() == pytest.approx(1.0, abs=1e-12)
            assert trace.q_rows[x][tokens[trace.examined_node[x]]] == trace.examined_q[x]
    copied = one(proposer="ngram", sampling=replace(SAMPLED, max_new_tokens=200, temperature=0.3))
    assert copied.n_examined.sum() > 0
    assert set(copied.q_rows.ravel()) == {0.0, 1.0}
    assert np.all(copied.examined_q == 1.0)
    assert np.isnan(copied.node_uniform).all()


def test_residual_mass_is_there_exactly_at_rejections():
    trace = one()
    rejected = np.array([np.any(trace.examined_accepted[step.examined] == 0) for step in steps_of(trace)])
    np.testing.assert_array_equal(np.isfinite(trace.residual_mass), rejected)
    assert rejected.any()
    assert np.all(trace.residual_mass[rejected] > 0)


def test_random_numbers_are_there_exactly_where_one_decided():
    trace = one()
    np.testing.assert_array_equal(np.isnan(trace.uniform), trace.role == Role.ACCEPTED)
    assert np.isfinite(trace.examined_uniform).all()
    gumbel = one(protocol=Protocol.GUMBEL)
    assert np.isnan(gumbel.uniform).all()
    assert np.isnan(gumbel.examined_uniform).all()
    assert np.isnan(gumbel.node_uniform).all()  # coupled drafts draw no number of their own


@pytest.mark.medium
@pytest.mark.parametrize("vocabulary", [8, 40])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tops_are_the_largest_scores(vocabulary, temperature):
    sampling = replace(SAMPLED, temperature=temperature)
    trace, full = (
        one(level, vocabulary=vocabulary, sampling=sampling) for level in (RecordLevel.TOPK, RecordLevel.FULL)
    )
    history = [*full.header.prompt, *full.tokens]
    start = len(full.header.prompt)
    assert trace.top_id.shape == (len(trace.token), min(20, vocabulary))
    for at in range(len(full.token)):
        scores = transform(full.logits[at], history[: start + at], start, sampling, ()).scores
        order = sorted(range(vocabulary), key=lambda i: (-scores[i], i))[:20]
        assert trace.top_id[at].tolist() == order
        np.testing.assert_array_equal(trace.top_score[at], scores[order])
        assert trace.top_lse[at] == pytest.approx(logsumexp(scores / (temperature or 1.0)), abs=1e-12)


@pytest.mark.medium
def test_a_request_that_ends_in_its_first_step():
    sampling = replace(SAMPLED, max_new_tokens=1)
    for level in RecordLevel:
        for protocol in Protocol:
            trace = one(level, protocol, sampling)
            assert trace.steps == len(trace.token) == 1
            assert (trace.n_drafted[0], trace.n_examined[0], trace.role[0]) == (0, 0, Role.PLAIN)
            assert trace.q_rows.shape == (0, 8)


def test_a_prompt_of_one_token():
    request = Request("r", (3,), SAMPLED)
    trace = traces(generate(Setup(), [request]))["r"]
    assert trace.header.prompt == (3,)
    assert trace.position[0] == 1
    assert len(trace.token) == SAMPLED.max_new_tokens


def built(*steps):
    return to_trace(header(), [reduce(header(), list(steps))])


def test_finish_sets_the_reason_and_the_timing_is_kept():
    recorder = Recorder(header())
    recorder.step(plain_step(np.float32([1, 2, 3, 0])))
    trace = decode(recorder.finish(FinishReason.EOS))
    assert trace.header.finish_reason is FinishReason.EOS
    assert (trace.draft_us[0], trace.verify_us[0], trace.batch[0]) == (3, 5, 2)


def test_a_step_during_which_the_machine_slept_is_recorded_as_long():
    slept = replace(plain_step(np.float32([1, 2, 3, 0])), timing=Timing(2**40, 2**31, 1))
    trace = built(slept)
    assert (trace.draft_us[0], trace.verify_us[0]) == (2**31 - 1, 2**31 - 1)


def test_logits_keep_the_model_s_precision():
    for dtype in (np.float32, np.float64):
        trace = built(plain_step(np.array([0.1, 0.2, 0.3, 0.4], dtype=dtype)))
        assert trace.logits.dtype == dtype


def test_masked_scores_give_an_infinite_or_large_margin_but_never_nan():
    scores = np.array([[1.0, -np.inf, -np.inf, -np.inf]])
    assert built(plain_step(np.float32([1, 2, 3, 0]), scores)).margin[0] == np.inf


def test_a_record_without_steps_is_a_trace_too():
    for level in RecordLevel:
        trace = to_trace(header(level), [])
        assert trace.steps == 0
        assert trace.logits.shape == trace.q_rows.shape == (0, 4)


def test_a_q_row_belongs_to_its_node_also_where_nodes_were_skipped():
    """A tree's rule may look at node 2 before node 1, or never at node 0."""
    q = np.eye(4)[[3, 1, 2]]
    proposal = Proposal(Tree((3, 1, 2), (-1, -1, -1)), QKind.FULL, q, np.array([0.1, 0.2, 0.3]))
    examined = (Examined(2, 0.0, 1.0, 0.5, False), Examined(1, 0.5, 1.0, 0.4, True))
    verdict = StepOutcome((Emitted(1, Role.ACCEPTED, 0, 0.5),), examined)
    trace = built(replace(plain_step(np.float32([1, 2, 3, 0])), proposal=proposal, verdict=verdict))
    np.testing.assert_array_equal(trace.q_rows, q[[2, 1]])
    np.testing.assert_array_equal(trace.node_uniform, [0.1, 0.2, 0.3])


def test_an_unknown_q_is_nan_not_zero():
    verdict = StepOutcome((Emitted(1, Role.ACCEPTED, 0, 0.5),), (Examined(0, 0.5, NAN, NAN, True),))
    proposal = Proposal(Tree.chain((1,)), QKind.NONE)
    step = replace(plain_step(np.float32([1, 2, 3, 0])), proposal=proposal, verdict=verdict)
    trace = built(step)
    assert np.isnan(trace.q_rows).all()
    assert np.isnan(trace.examined_q).all()


@pytest.mark.parametrize("level", list(RecordLevel))
def test_rows_that_a_level_does_not_hold_are_let_go_while_decoding(level, monkeypatch):
    monkeypatch.setattr("engine.record.recorder.BLOCK", 8)
    recorder = Recorder(header(level))
    for _ in range(3):
        recorder.step(plain_step(np.float32([1, 2, 3, 0])))
    (kept,) = recorder._kept
    assert len(kept.records) == 2, "a block is full at two rows of four logits"
    assert kept.logits.size == (8 if level is RecordLevel.FULL else 0)
    assert all(each.logits.size == 0 and each.scores is None and each.proposal.q is None for each in kept.records)


@pytest.mark.medium
@pytest.mark.parametrize("level", list(RecordLevel))
@pytest.mark.parametrize("sampling", [SAMPLED, SamplingParams(temperature=0.8, max_new_tokens=30, seed=4)])
def test_the_size_of_a_block_changes_nothing(level, sampling, monkeypatch):
    def numbers(trace):
        return {f.name: getattr(trace, f.name) for f in fields(trace) if not f.name.endswith(("_us", "header"))}

    whole = numbers(one(level, sampling=sampling))
    monkeypatch.setattr("engine.record.recorder.BLOCK", 1)
    for name, column in numbers(one(level, sampling=sampling)).items():
        np.testing.assert_array_equal(column, whole[name], name)


def test_scores_that_nothing_changed_are_the_logits():
    logits = np.float32([[1.5, -0.25, 3, 0]])
    told, silent = (built(plain_step(logits[0], scores)) for scores in (logits.astype(np.float64), None))
    assert told.margin == silent.margin == 1.5
    np.testing.assert_array_equal(told.logits, silent.logits)


def test_a_tie_leads_by_nothing_and_rows_survive_being_measured():
    row = np.float32([2, 7, 7, -np.inf])
    trace = built(plain_step(row))
    assert trace.margin[0] == 0.0
    np.testing.assert_array_equal(trace.logits[0], row)


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_the_digest_is_that_of_the_row_s_bytes(dtype):
    row = np.array([0.1, 2, 3, 0], dtype=dtype)
    (found,) = built(plain_step(row)).logits_digest
    assert int(found).to_bytes(8, "little") == blake3(row.tobytes()).digest(8)
    last_bit = row.copy()
    last_bit.view(np.uint8)[0] ^= 1
    assert built(plain_step(last_bit)).logits_digest[0] != found


def test_the_digest_is_of_the_logits_not_of_the_scores():
    penalised, free = one(), one(sampling=replace(SAMPLED, repetition_penalty=1.0, bad_words=()))
    np.testing.assert_array_equal(penalised.logits_digest, digests(penalised.logits))
    # the first position of both has the same prefix and other scores
    assert penalised.margin[0] != free.margin[0]
    assert penalised.logits_digest[0] == free.logits_digest[0]


def test_sixteen_bit_rows_are_hashed_as_the_float32_that_hold_them():
    half = torch.tensor([[0.1, 2.0, 3.0, 0.0]], dtype=torch.bfloat16)
    assert to_numpy(half).dtype == np.float32
    np.testing.assert_array_equal(digests(to_numpy(half)), digests(half.float().numpy()))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"top_k": 2, "top_p": 0.5, "min_p": 0.1},
        {"logit_bias": ((1, 2.0),)},
        {"bad_words": ((2,),)},
        {"min_tokens": 3},
        {"repetition_penalty": 1.2},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
    ],
)
def test_scores_are_called_plain_exactly_where_they_are_the_logits(change):
    params, logits = SamplingParams(temperature=0.7, **change), np.array([0.5, 2.0, -1.0, 0.25])
    scores = transform(logits, [0, 1, 2], 1, params, (3,)).scores
    assert params.plain_scores == np.array_equal(scores, logits)
