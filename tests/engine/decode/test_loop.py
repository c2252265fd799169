"""The loop: equal to plain decoding, whatever is drafted, batched, cut or reused."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from engine import verify
from engine.core.errors import InvalidRequest
from engine.core.trees import path_tokens
from engine.core.types import FinishReason, Proposal, Protocol, QKind, RecordLevel, Request, Role, SamplingParams, Tree
from engine.decode.loop import Loop, LoopOptions
from engine.models.scripted import ScriptedModel
from engine.record.recorder import Recorder
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from tests.engine.branching import FixedProposer, TreeProposer
from tests.engine.build import Setup, generate, make_loop, requests, spell, target_script, traces
from tests.support.tiers import fast_first, slow_unless

GREEDY = SamplingParams(max_new_tokens=24)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, max_new_tokens=24, seed=5)
MASKED = replace(
    SAMPLED,
    repetition_penalty=1.3,
    frequency_penalty=0.4,
    bad_words=((3,), (1, 2), (5, 0, 6)),
    min_tokens=6,
    stop_token_ids=(7,),
    logit_bias=((4, 1.5),),
)


def varied(count, sampling, vocabulary=8):
    """Ragged prompts, one of a single token, and lengths from 1 up."""
    ragged = requests(count - 1, sampling, vocabulary)
    ragged.append(Request("single", (3,), sampling, stream_of("single")))
    return [
        replace(each, sampling=replace(sampling, max_new_tokens=1 + (i * 5) % sampling.max_new_tokens))
        for i, each in enumerate(ragged)
    ]


def loop_with(proposer, setup, capacity=512):
    target = ScriptedModel(target_script(setup), setup.vocabulary, eos_ids=setup.eos_ids)
    options = LoopOptions(setup.rows, setup.gamma, capacity, setup.level)
    return Loop(target, proposer, verify.load(setup.protocol), spell, options)


def outputs(generations):
    return {name: (each.tokens, each.finish_reason, each.text) for name, each in generations.items()}


def plain(wanted, protocol, eos_ids=(), vocabulary=8):
    return outputs(generate(Setup(None, protocol, vocabulary=vocabulary, eos_ids=eos_ids), wanted))


@pytest.mark.parametrize("rows", fast_first([3, 1, 8]))
@pytest.mark.parametrize("proposer", ["draft_model", "ngram", "tree"])
@pytest.mark.parametrize(
    ("protocol", "sampling"),
    [(Protocol.GREEDY, GREEDY), (Protocol.GUMBEL, SAMPLED), (Protocol.GUMBEL, MASKED)],
    ids=["greedy", "gumbel", "gumbel-masked"],
)
def test_every_proposer_gives_the_tokens_of_plain_decoding(rows, proposer, protocol, sampling):
    options = {"min_ngram": 1} if proposer == "ngram" else {}
    setup = Setup(proposer, protocol, gamma=7, rows=rows, eos_ids=(2,), options=options)
    wanted = varied(9, replace(sampling, max_new_tokens=43))
    loop = loop_with(TreeProposer(setup), setup) if proposer == "tree" else make_loop(setup)
    got = {each.request.id: each for each in loop.run(wanted)}
    assert outputs(got) == plain(wanted, protocol, eos_ids=(2,))
    assert sum(trace.n_accepted for trace in traces(got).values()) > 0


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.GREEDY, Protocol.GUMBEL])
@pytest.mark.parametrize("rows", [1, 3])
def test_accepted_paths_that_skip_nodes_are_committed(protocol, rows):
    sampling = GREEDY if protocol is Protocol.GREEDY else SAMPLED
    setup = Setup(None, protocol, gamma=6, rows=rows)
    proposer = TreeProposer(setup)
    wanted = requests(5, replace(sampling, max_new_tokens=40))
    got = {each.request.id: each for each in loop_with(proposer, setup).run(wanted)}
    assert outputs(got) == plain(wanted, protocol)
    jumps = [
        np.any(np.diff([e.node for e in verdict.examined if e.accepted], prepend=-1) != 1)
        for _, _, verdict in proposer.seen
        if verdict.n_accepted
    ]
    assert sum(jumps) > 5


def test_a_commit_to_the_wrong_columns_would_be_seen():
    """The negative control of the tests above: without the commit, the next step reads a wrong prefix."""
    setup = Setup(None, Protocol.GREEDY, gamma=6)
    wanted = requests(5, replace(GREEDY, max_new_tokens=40))
    loop = loop_with(TreeProposer(setup), setup)
    loop._cache.commit = lambda row, source, target: None
    got = {each.request.id: each for each in loop.run(wanted)}
    assert outputs(got) != plain(wanted, Protocol.GREEDY)


@pytest.mark.parametrize("seed", range(6))
def test_the_rows_of_a_random_tree_are_those_of_its_paths(seed):
    rng = np.random.default_rng(seed)
    setup = Setup(None, Protocol.GREEDY, gamma=12)
    parents = tuple(int(rng.integers(-1, node)) if node else -1 for node in range(12))
    tree = Tree(tuple(int(t) for t in rng.integers(0, 8, 12)), parents)
    seen = []

    class Spy:
        facts = verify.load(Protocol.GREEDY).facts

        def verify(self, proposal, rows, randomness):
            for node in range(-1, len(proposal.tree)):
                prefix = (*prompt, *tokens, *path_tokens(proposal.tree, node))
                np.testing.assert_array_equal(rows.logits[node + 1], target_script(setup)(prefix))
                seen.append(node)
            verdict = verify.load(Protocol.GREEDY).verify(proposal, rows, randomness)
            tokens.extend(each.token for each in verdict.emitted)
            return verdict

    loop = loop_with(
        FixedProposer(lambda context: Proposal(tree, QKind.ONE_HOT) if context.budget == 12 else Proposal()), setup
    )
    loop._verifier = Spy()
    prompt, tokens = (1, 5, 2), []
    (generation,) = loop.run([Request("r", prompt, replace(GREEDY, max_new_tokens=30))])
    assert generation.tokens == tuple(tokens)[:30]
    assert len(seen) > 24


@pytest.mark.medium
@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("proposer", fast_first(["draft_model", "ngram", None]))
def test_a_request_s_record_does_not_depend_on_its_batch(protocol, proposer):
    sampling = GREEDY if protocol is Protocol.GREEDY else MASKED
    wanted = varied(9, sampling)
    together = traces(generate(Setup(proposer, protocol, rows=4), wanted))
    for request in wanted:
        alone = traces(generate(Setup(proposer, protocol, rows=1), [request]))[request.id]
        for column in ("token", "role", "uniform", "examined_uniform", "node_uniform", "p", "examined_q", "logits"):
            np.testing.assert_array_equal(getattr(alone, column), getattr(together[request.id], column), column)


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.GUMBEL])
def test_neither_order_nor_repetition_matters(protocol):
    setup = Setup(protocol=protocol, rows=3, gamma=4)
    wanted = varied(9, SAMPLED)
    first = outputs(generate(setup, wanted))
    assert outputs(generate(setup, wanted[::-1])) == first
    loop = make_loop(setup)
    for _ in range(2):
        assert outputs({each.request.id: each for each in loop.run(wanted)}) == first


@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.GUMBEL])
def test_the_same_request_twice_in_one_batch_gives_the_same_twice(protocol):
    request = requests(3, SAMPLED)[2]
    for rows in (1, 2):
        twins = [replace(request, id=name) for name in ("first", "second")]
        got = outputs(generate(Setup(protocol=protocol, rows=rows), [*requests(2, SAMPLED), *twins]))
        assert got["first"] == got["second"]


@pytest.mark.medium
def test_an_abandoned_run_leaves_nothing_behind():
    setup = Setup(rows=3)
    loop, wanted = make_loop(setup), varied(9, SAMPLED)
    abandoned = loop.run(requests(6, replace(SAMPLED, max_new_tokens=50)))
    next(abandoned)
    abandoned.close()
    assert outputs({each.request.id: each for each in loop.run(wanted)}) == outputs(generate(setup, wanted))


def test_a_different_seed_or_stream_draws_other_numbers():
    request = requests(1, replace(SAMPLED, max_new_tokens=60))[0]
    others = [replace(request, id="s", stream=request.stream + 1), replace(request, sampling=replace(SAMPLED, seed=6))]
    base = traces(generate(Setup(), [request]))["r0"]
    for other in others:
        trace = decode(next(make_loop(Setup()).run([other])).trace)
        assert not set(trace.examined_uniform) & set(base.examined_uniform)


@pytest.mark.parametrize("gamma", [0, 1, 4, 30])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.GUMBEL])
def test_drafts_respect_gamma_and_the_remaining_length(gamma, length, protocol):
    setup = Setup(protocol=protocol, gamma=gamma, rows=2)
    got = generate(setup, requests(4, replace(SAMPLED, max_new_tokens=length)))
    for trace in traces(got).values():
        assert len(trace.token) == length
        done = np.concatenate([[0], np.cumsum(trace.n_emitted)[:-1]])
        assert np.all(trace.n_drafted <= np.minimum(gamma, length - 1 - done))
        assert trace.position.tolist() == (len(trace.header.prompt) + done).tolist()


def test_the_last_column_of_the_cache_is_usable_and_none_beyond_it():
    request = Request("r", (0, 1, 2, 3), replace(SAMPLED, max_new_tokens=12))
    (tight,) = make_loop(Setup(gamma=6), capacity=16).run([request])
    (roomy,) = make_loop(Setup(gamma=6), capacity=512).run([request])
    assert tight.tokens == roomy.tokens
    assert len(tight.tokens) == 12


@pytest.mark.medium
@pytest.mark.parametrize("protocol", slow_unless(list(Protocol), [Protocol.CHAIN, Protocol.GREEDY, Protocol.TREE]))
def test_nothing_after_an_end_token_is_emitted_or_counted(protocol):
    sampling = replace(GREEDY if protocol is Protocol.GREEDY else SAMPLED, max_new_tokens=60, temperature=1.0)
    got = generate(Setup(protocol=protocol, rows=4, gamma=6, eos_ids=(2, 5)), requests(40, sampling))
    inside = 0
    for generation in got.values():
        trace = decode(generation.trace)
        ends = [i for i, token in enumerate(generation.tokens) if token in (2, 5)]
        assert ends in ([], [len(generation.tokens) - 1])
        assert (generation.finish_reason is FinishReason.EOS) == bool(ends)
        assert int(trace.examined_accepted.sum()) == trace.n_accepted
        assert trace.token.tolist() == list(generation.tokens)
        inside += bool(ends) and trace.role[-1] == Role.ACCEPTED and trace.n_drafted[-1] > trace.n_emitted[-1]
    assert inside > 0, "no end token was ever inside a draft"


@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.GUMBEL])
@pytest.mark.parametrize("proposer", ["draft_model", "ngram"])
def test_masks_hold_inside_drafts(proposer, protocol):
    options = {"min_ngram": 1} if proposer == "ngram" else {}
    setup = Setup(proposer, protocol, gamma=5, rows=3, eos_ids=(2,), options=options)
    for generation in generate(setup, varied(12, MASKED)).values():
        tokens = generation.tokens
        assert 3 not in tokens
        assert (1, 2) not in set(itertools.pairwise(tokens))
        assert (5, 0, 6) not in set(zip(tokens, tokens[1:], tokens[2:], strict=False))
        assert not {2, 7} & set(tokens[:6])


@pytest.mark.parametrize("protocol", list(Protocol))
def test_empty_proposals_are_plain_steps(protocol):
    setup = Setup(None, protocol)
    loop = loop_with(FixedProposer(lambda context: Proposal()), setup)
    sampling = GREEDY if protocol is Protocol.GREEDY else SAMPLED
    for generation in loop.run(requests(3, sampling)):
        trace = decode(generation.trace)
        assert trace.steps == len(trace.token)
        assert set(trace.role) == {Role.PLAIN}
        assert trace.n_drafted.sum() == 0


def test_rows_without_a_draft_beside_rows_with_one():
    def sometimes(context):
        drafted = tuple((context.history[-1] + i) % 8 for i in range(1, 1 + min(3, context.budget)))
        return Proposal(Tree.chain(drafted), QKind.ONE_HOT) if len(context.history) % 2 and drafted else Proposal()

    setup = Setup(None, Protocol.GUMBEL, rows=4)
    wanted = varied(9, SAMPLED)
    got = {each.request.id: each for each in loop_with(FixedProposer(sometimes), setup).run(wanted)}
    assert outputs(got) == plain(wanted, Protocol.GUMBEL)


def test_rows_are_reused_and_every_start_has_its_finish():
    setup = Setup(None, Protocol.GREEDY, gamma=6, rows=2)
    proposer = TreeProposer(setup)
    finished = list(loop_with(proposer, setup).run(varied(7, GREEDY)))
    assert len(finished) == len(proposer.started) == len(proposer.finished) == 7
    assert {row for row, _ in proposer.started} == {0, 1}


def test_observe_sees_the_history_with_the_emitted_tokens():
    setup = Setup(None, Protocol.GREEDY, gamma=6)
    proposer = TreeProposer(setup)
    (generation,) = loop_with(proposer, setup).run(requests(1, GREEDY))
    told = [each.token for _, _, verdict in proposer.seen for each in verdict.emitted]
    assert tuple(told) == generation.tokens
    lengths = [length for _, length, _ in proposer.seen]
    assert lengths == (len(generation.request.prompt) + np.cumsum(decode(generation.trace).n_emitted)).tolist()


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (Tree.chain((1, 2, 3, 4)), "request r0: the proposer drafted 4 tokens, its budget was 3"),
        (Tree((1, 2), (-1, 1)), "tree node 1 has parent 1"),
        (Tree((1, 2), (-1,)), "2 tokens has 1 parents"),
    ],
)
def test_a_proposal_that_breaks_the_rules_is_refused(tree, message):
    setup = Setup(None, Protocol.GREEDY, gamma=3)
    loop = loop_with(FixedProposer(lambda context: Proposal(tree, QKind.ONE_HOT)), setup)
    with pytest.raises(InvalidRequest, match=message):
        list(loop.run(requests(1, GREEDY)))


def test_the_chain_rule_refuses_what_it_cannot_verify():
    setup = Setup(None, Protocol.CHAIN, gamma=6)
    with pytest.raises(InvalidRequest, match="cannot verify a branching tree"):
        list(loop_with(TreeProposer(setup), setup).run(requests(1, SAMPLED)))
    unknown = FixedProposer(lambda context: Proposal(Tree.chain((1,)[: context.budget])))
    with pytest.raises(InvalidRequest, match="needs q"):
        list(loop_with(unknown, setup).run(requests(1, SAMPLED)))


def test_no_requests_give_no_generations():
    assert list(make_loop(Setup()).run([])) == []


def test_steps_are_counted_from_zero_within_each_request(monkeypatch):
    seen = {}

    class Spy(Recorder):
        def step(self, record):
            seen.setdefault(self.header.request, []).append(record.step)

    monkeypatch.setattr("engine.decode.loop.Recorder", Spy)
    generate(Setup(rows=2), varied(7, SAMPLED))
    assert len(seen) == 7
    assert all(steps == list(range(len(steps))) for steps in seen.values())


@pytest.mark.parametrize("level", list(RecordLevel))
def test_the_record_level_changes_no_token(level):
    wanted = varied(5, SAMPLED)
    assert outputs(generate(Setup(level=level), wanted)) == outputs(generate(Setup(), wanted))


@pytest.mark.parametrize("rows", [1, 3])
def test_the_facts_of_a_request_say_when_and_where_it_ran(rows):
    found = traces(generate(Setup(rows=rows), varied(9, SAMPLED)))
    assert {each.header.facts["call"] for each in found.values()} == {"r0"}
    batches = {}
    for trace in found.values():
        for step in range(trace.steps):
            batches.setdefault(trace.header.facts["round"] + step, []).append((trace, step))
    for number, batch in batches.items():
        assert {int(trace.batch[step]) for trace, step in batch} == {len(batch)}, number
        assert len({trace.header.facts["row"] for trace, _ in batch}) == len(batch)
        assert {trace.header.facts["row"] for trace, _ in batch} <= set(range(rows))
    assert sorted(batches) == list(range(len(batches)))
