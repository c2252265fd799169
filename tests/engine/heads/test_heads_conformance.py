"""What every proposer with a head must do, over a tiny target of random weights."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from audit import checks
from audit.checks.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine import proposers, verify
from engine.core.errors import InvalidRequest, ModelError, ModelNeeded
from engine.core.trees import require_valid
from engine.core.types import DraftRule, FinishReason, Protocol, QKind, Request, SamplingParams
from engine.heads.checkpoint import HeadCheckpoint
from engine.models.interface import WantedOutputs, chain_placement
from engine.models.scripted import ScriptedModel
from engine.proposers.build import ProposerParts, TargetSide
from engine.proposers.interface import Context, TargetOutputs
from engine.record.effective import Effective
from engine.record.trace import decode
from engine.sampling.draw import draw
from engine.sampling.rng import Randomness, stream_of
from tests.audit.checks.simulator import record
from tests.engine.build import Setup, requests, target_script
from tests.engine.enumeration import PROMPT, TOLERANCE, distance, emitted_law, enumerate_decisions

from .tiny import HEADS, generate, made, make_loop, target_law, tiny_target

CASES = sorted(case for case, (kind, _) in HEADS.items() if kind in proposers.REGISTRY)
KINDS = sorted({HEADS[case][0] for case in CASES})
GREEDY = SamplingParams(max_new_tokens=24)
SAMPLED = SamplingParams(temperature=0.8, max_new_tokens=24, seed=3)
SHAPED = replace(SAMPLED, top_p=0.9, repetition_penalty=1.2, min_tokens=4)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def protocols(case):
    for protocol in Protocol:
        facts = verify.load(protocol).facts
        if facts.lossless and (facts.trees or made(case, facts.draft_rule)[0].facts.shape == "chain"):
            yield protocol


PAIRS = [(case, protocol) for case in CASES for protocol in protocols(case)]
COMPARING = [pair for pair in PAIRS if pair[1] in (Protocol.GREEDY, Protocol.GUMBEL)]
SAMPLING = [pair for pair in PAIRS if pair[1] is not Protocol.GREEDY]


def sampling_for(protocol, sampled=SAMPLED):
    return replace(sampled, temperature=0.0) if protocol is Protocol.GREEDY else sampled


def ragged(count, sampling):
    return [
        replace(each, sampling=replace(sampling, max_new_tokens=1 + 7 * i % 24))
        for i, each in enumerate(requests(count, sampling))
    ]


def outputs(generations):
    return {name: (each.tokens, each.finish_reason) for name, each in generations.items()}


@pytest.mark.parametrize(("case", "protocol"), SAMPLING)
def test_the_law_is_the_target_s(case, protocol, monkeypatch):
    branches = enumerate_decisions(monkeypatch)
    setup = Setup(case, protocol=protocol, gamma=2, vocabulary=3, eos_ids=(1,))
    params = SamplingParams(temperature=1.0, repetition_penalty=1.3, max_new_tokens=3)
    law = emitted_law(setup, params, branches, make_loop(setup, capacity=32))
    assert branches.total >= len(law) > 10
    assert math.isclose(sum(law.values()), 1.0, abs_tol=TOLERANCE)
    assert distance(law, target_law(setup, params, PROMPT)) < TOLERANCE


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(("case", "protocol"), COMPARING)
@pytest.mark.parametrize("sampled", [SAMPLED, SHAPED], ids=["sampled", "shaped"])
def test_comparing_rules_give_the_tokens_of_plain_decoding(case, protocol, rows, sampled):
    wanted = ragged(8, sampling_for(protocol, sampled))
    got = generate(Setup(case, protocol, rows=rows, gamma=4, eos_ids=(5,)), wanted)
    assert outputs(got) == outputs(generate(Setup(None, protocol, eos_ids=(5,)), wanted))


@pytest.mark.parametrize(("case", "protocol"), PAIRS)
def test_it_drafts_and_some_of_it_is_accepted(case, protocol):
    got = generate(Setup(case, protocol, rows=4, gamma=4), requests(8, sampling_for(protocol)))
    traces = [decode(each.trace) for each in got.values()]
    assert sum(int(trace.n_drafted.sum()) for trace in traces) > 20
    assert sum(trace.n_accepted for trace in traces) > 5


@pytest.mark.parametrize(("case", "protocol"), PAIRS)
def test_no_state_leaks_between_requests(case, protocol):
    wanted = ragged(6, sampling_for(protocol, SHAPED))
    setup = Setup(case, protocol, rows=2, gamma=4, eos_ids=(5,))
    alone = {request.id: generate(replace(setup, rows=1), [request])[request.id] for request in wanted}
    loop = make_loop(setup)
    for order in (wanted, wanted[::-1]):
        for generation in loop.run(order):
            ours, other = decode(generation.trace), decode(alone[generation.request.id].trace)
            for column in ("token", "role", "node_token"):
                np.testing.assert_array_equal(getattr(ours, column), getattr(other, column), column)
            np.testing.assert_allclose(ours.examined_q, other.examined_q, atol=1e-9)


@pytest.mark.parametrize(("case", "protocol"), PAIRS)
@pytest.mark.parametrize("sampled", [SAMPLED, SHAPED], ids=["sampled", "shaped"])
def test_every_decision_can_be_replayed_from_the_record(case, protocol, sampled):
    setup = Setup(case, protocol, rows=3, gamma=4, eos_ids=(5,))
    got = generate(setup, ragged(8, sampling_for(protocol, sampled)))
    arm = ArmRecord(
        "candidate",
        ArmKind.CANDIDATE,
        Level.L4,
        Effective(),
        tuple(record(decode(each.trace)) for each in got.values()),
    )
    result = evaluate(checks.load("replay"), Evidence(arm), {})
    assert result.verdict is Verdict.CERTIFIED, result.summary


@pytest.mark.parametrize(("case", "protocol"), PAIRS)
def test_an_end_token_inside_a_draft_ends_the_request(case, protocol):
    wanted = [
        Request(f"r{i}", (i % 8, 1, 3, 0), replace(sampling_for(protocol), seed=i), stream_of(f"r{i}"))
        for i in range(24)
    ]
    ended = 0
    for generation in generate(Setup(case, protocol, rows=4, gamma=6, eos_ids=(2, 5)), wanted).values():
        trace = decode(generation.trace)
        places = [i for i, token in enumerate(generation.tokens) if token in (2, 5)]
        assert places in ([], [len(generation.tokens) - 1])
        assert (generation.finish_reason is FinishReason.EOS) == bool(places)
        ended += bool(places) and trace.n_drafted[-1] > trace.n_emitted[-1]
    assert ended > 0


def started(case, rule, prompt, budget=4, sampling=SAMPLED, proposer=None):
    """The first proposal for a prompt, by a new proposer unless one is given."""
    side = None
    if proposer is None:
        proposer, side = made(case, rule)
    target = tiny_target()
    cache = side.cache if side else target.new_cache(1, 64)
    layers = proposer.facts.hidden
    forward = target.forward(cache, chain_placement([list(prompt)], [0], cache.trash), WantedOutputs(False, layers))
    request = Request("r", prompt, sampling)
    read = TargetOutputs({layer: forward.hidden[layer][0, :-1] for layer in layers})
    context = Context(0, request, list(prompt), budget, Randomness(3, 4), read=read)
    proposer.start(context)
    (proposal,) = proposer.propose([context])
    return proposal


@pytest.mark.parametrize("budget", [0, 1, 2, 5])
@pytest.mark.parametrize(("case", "protocol"), PAIRS)
def test_a_proposal_keeps_its_budget_and_its_declared_facts(case, protocol, budget):
    rule, sampling = verify.load(protocol).facts.draft_rule, sampling_for(protocol)
    facts = made(case, rule)[0].facts
    proposal = started(case, rule, (0, 1, 2, 0, 1), budget, sampling)
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


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("prompt", [(1,), (1, 2), (1, 2, 1, 4)])
def test_start_forgets_what_the_row_held(case, prompt):
    used = made(case)[0]
    started(case, DraftRule.INDEPENDENT, (4, 5, 6, 7, 4, 5, 6, 7, 4), proposer=used)
    kept, fresh = (started(case, DraftRule.INDEPENDENT, prompt, proposer=each) for each in (used, made(case)[0]))
    assert kept.tree == fresh.tree
    if fresh.q is not None:
        np.testing.assert_allclose(kept.q, fresh.q, atol=1e-12)


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


def parts_with(head, model=None, options=None):
    model = model or tiny_target()
    side = TargetSide(model, model.new_cache(1, 16))
    return ProposerParts(1, 16, DraftRule.GREEDY, draw, (), options=options or {}, target=side, head=head)


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
