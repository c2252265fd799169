"""What every proposer with a head must do, over a tiny target of random weights."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine import proposers, verify
from engine.core.errors import InvalidRequest, ModelError, ModelNeeded
from engine.core.trees import require_valid
from engine.core.types import DraftRule, FinishReason, Protocol, QKind, Request, SamplingParams
from engine.heads.checkpoint import HeadCheckpoint
from engine.models.scripted import ScriptedModel
from engine.proposers.interface import ProposerParts, TargetSide
from engine.record.effective import Effective
from engine.record.trace import decode
from engine.sampling.draw import draw
from engine.sampling.rng import stream_of
from tests.audit.checks.simulator import record
from tests.engine.build import Setup, requests, target_script
from tests.engine.enumeration import PROMPT, TOLERANCE, distance, emitted_law, enumerate_decisions
from tests.support.cases import every_case
from tests.support.drafting_again import again, require_the_same_drafts
from tests.support.head_cases import (
    CASES,
    COMPARING,
    KINDS,
    PAIRS,
    SAMPLED,
    SAMPLING,
    SHAPED,
    outputs,
    parts_with,
    ragged,
    sampling_for,
    started,
)
from tests.support.tiers import daily, first_rejection, slow_unless

from .tiny import HEADS, generate, made, make_loop, target_law, tiny_target


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.medium
@pytest.mark.parametrize(("case", "protocol"), slow_unless(SAMPLING, first_rejection(SAMPLING)))
def test_the_law_is_the_target_s(case, protocol, monkeypatch):
    branches = enumerate_decisions(monkeypatch)
    setup = Setup(case, protocol=protocol, gamma=2, vocabulary=3, eos_ids=(1,))
    params = SamplingParams(temperature=1.0, repetition_penalty=1.3, max_new_tokens=3)
    law = emitted_law(setup, params, branches, make_loop(setup, capacity=32))
    assert branches.total >= len(law) > 10
    assert math.isclose(sum(law.values()), 1.0, abs_tol=TOLERANCE)
    assert distance(law, target_law(setup, params, PROMPT)) < TOLERANCE


@functools.cache
def plain_outputs(protocol, sampling):
    """What plain decoding answers to the eight ragged requests."""
    return outputs(generate(Setup(None, protocol, eos_ids=(5,)), ragged(8, sampling)))


def require_drafts_of_use(head, protocol):
    got = generate(Setup(head, protocol, rows=4, gamma=4), requests(8, sampling_for(protocol)))
    traces = [decode(each.trace) for each in got.values()]
    assert sum(int(trace.n_drafted.sum()) for trace in traces) > 20
    assert sum(trace.n_accepted for trace in traces) > 5


def require_requests_alone(head, protocol):
    """No state leaks between requests."""
    wanted = ragged(6, sampling_for(protocol, SHAPED))
    setup = Setup(head, protocol, rows=2, gamma=4, eos_ids=(5,))
    alone = {request.id: generate(replace(setup, rows=1), [request])[request.id] for request in wanted}
    loop = make_loop(setup)
    for order in (wanted, wanted[::-1]):
        for generation in loop.run(order):
            ours, other = decode(generation.trace), decode(alone[generation.request.id].trace)
            for column in ("token", "role", "node_token"):
                np.testing.assert_array_equal(getattr(ours, column), getattr(other, column), column)
            np.testing.assert_allclose(ours.examined_q, other.examined_q, atol=1e-9)


def require_replayable(generations):
    """Every decision follows from the record."""
    records = tuple(record(decode(each.trace)) for each in generations.values())
    arm = ArmRecord("candidate", ArmKind.CANDIDATE, Level.L4, Effective(), records)
    result = evaluate(checks.load("replay"), Evidence(arm), {})
    assert result.verdict is Verdict.CERTIFIED, result.summary


def require_an_end_inside_a_draft(head, protocol):
    """An end token inside a draft ends the request."""
    wanted = [
        Request(f"r{i}", (i % 8, 1, 3, 0), replace(sampling_for(protocol), seed=i), stream_of(f"r{i}"))
        for i in range(24)
    ]
    ended = 0
    for generation in generate(Setup(head, protocol, rows=4, gamma=6, eos_ids=(2, 5)), wanted).values():
        trace = decode(generation.trace)
        places = [i for i, token in enumerate(generation.tokens) if token in (2, 5)]
        assert places in ([], [len(generation.tokens) - 1])
        assert (generation.finish_reason is FinishReason.EOS) == bool(places)
        ended += bool(places) and trace.n_drafted[-1] > trace.n_emitted[-1]
    assert ended > 0


def require_budget_and_facts(head, protocol, budget):
    """A proposal keeps its budget and its declared facts."""
    rule, sampling = verify.load(protocol).facts.draft_rule, sampling_for(protocol)
    facts = made(head, rule)[0].facts
    proposal = started(head, rule, (0, 1, 2, 0, 1), budget, sampling)
    count = len(proposal.tree)
    require_valid(proposal.tree)
    assert (count > 0) == (budget > 0)
    assert count <= budget
    if count == 0:
        return
    assert proposal.q_kind == (facts.q_kind if sampling.temperature else min(facts.q_kind, QKind.ONE_HOT))
    if proposal.q_kind is QKind.FULL:
        assert proposal.q.shape == (count, 8)
        np.testing.assert_allclose(proposal.q.sum(axis=1), 1.0, atol=1e-12)
        assert np.all(proposal.q[np.arange(count), list(proposal.tree.tokens)] > 0)


@pytest.mark.medium
@pytest.mark.parametrize(("head", "protocol"), slow_unless(PAIRS, daily(PAIRS, ("eagle",))))
def test_it_serves_as_every_head_must(head, protocol):
    comparing = (head, protocol) in COMPARING
    with every_case() as case:
        for name, sampled in (("sampled", SAMPLED), ("shaped", SHAPED)):
            sampling = sampling_for(protocol, sampled)
            for rows in (4, 1) if comparing else (4,):
                got = generate(Setup(head, protocol, rows=rows, gamma=4, eos_ids=(5,)), ragged(8, sampling))
                if rows == 4:
                    with case(f"replay of the record, {name}"):
                        require_replayable(got)
                if comparing:
                    with case(f"tokens of plain decoding, {name}, {rows} rows"):
                        assert outputs(got) == plain_outputs(protocol, sampling)
        with case("drafts of which some are accepted"):
            require_drafts_of_use(head, protocol)
        with case("no state leaks between requests"):
            require_requests_alone(head, protocol)
        with case("an end token inside a draft"):
            require_an_end_inside_a_draft(head, protocol)
        for budget in (0, 1, 2, 5):
            with case(f"a budget of {budget}"):
                require_budget_and_facts(head, protocol, budget)


@pytest.mark.medium
@pytest.mark.parametrize(("head", "protocol"), slow_unless(PAIRS, daily(PAIRS)[:2]))
def test_alone_it_repeats_the_drafts_that_it_made_in_a_batch(head, protocol):
    setup = Setup(head, protocol=protocol, rows=3, gamma=4)
    for generation in generate(setup, ragged(4, sampling_for(protocol, SHAPED))).values():
        trace = decode(generation.trace)
        require_the_same_drafts(trace, again(make_loop(replace(setup, rows=1)), generation.request, trace), 1e-5)


@pytest.mark.parametrize("head", CASES)
def test_start_forgets_what_the_row_held(head):
    with every_case() as case:
        for prompt in ((1,), (1, 2), (1, 2, 1, 4)):
            with case(prompt):
                used = made(head)[0]
                started(head, DraftRule.INDEPENDENT, (4, 5, 6, 7, 4, 5, 6, 7, 4), proposer=used)
                kept = started(head, DraftRule.INDEPENDENT, prompt, proposer=used)
                fresh = started(head, DraftRule.INDEPENDENT, prompt, proposer=made(head)[0])
                assert kept.tree == fresh.tree
                if fresh.q is not None:
                    np.testing.assert_allclose(kept.q, fresh.q, atol=1e-12)


@pytest.mark.medium
@pytest.mark.parametrize("case", [case for case in CASES if "max_position_embeddings" in HEADS[case][1]().config])
def test_a_head_whose_context_is_shorter_than_the_target_s_stops_drafting(case):
    kind, head = HEADS[case]
    short = replace(head(), config={**head().config, "max_position_embeddings": 12})
    target = tiny_target()
    side = TargetSide(target, target.new_cache(1, 64))
    parts = ProposerParts(1, 64, DraftRule.COUPLED, draw, (), target=side, head=short)
    loop = make_loop(Setup(None, Protocol.GUMBEL, gamma=4), 64)
    plain = {each.request.id: each.tokens for each in loop.run(requests(2, SAMPLED))}
    loop = make_loop(Setup(case, Protocol.GUMBEL, gamma=4), 64)
    loop._proposer, loop._cache = proposers.build(kind, parts), side.cache
    for generation in loop.run(requests(2, SAMPLED)):
        trace = decode(generation.trace)
        assert generation.tokens == plain[generation.request.id]
        assert trace.n_drafted[0] > 0
        assert trace.n_drafted[-4:].sum() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_options_are_read_before_the_head_is_asked_for(kind):
    with pytest.raises(InvalidRequest, match="has no option 'no_such_option'"):
        proposers.build(kind, parts_with(None, options={"no_such_option": 1}))
    with pytest.raises(ModelNeeded, match="head"):
        proposers.build(kind, parts_with(None))


@pytest.mark.parametrize("case", CASES)
def test_a_head_that_does_not_fit_is_refused_in_one_line(case):
    kind, head = HEADS[case]
    with pytest.raises(InvalidRequest, match=f"proposer {kind} cannot draft with a strange head"):
        proposers.build(kind, parts_with(HeadCheckpoint("strange", "other", {}, {})))
    with pytest.raises(ModelError, match="is 8, the target's is 3"):
        proposers.build(kind, parts_with(head(), tiny_target(3)))
    with pytest.raises(InvalidRequest, match="loader: lean"):
        proposers.build(kind, parts_with(head(), ScriptedModel(target_script(Setup()), 8)))
