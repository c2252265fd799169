import math
from dataclasses import replace

import numpy as np
import pytest

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind, ArmRecord, Evidence, Level
from audit.evidence.verdicts import Verdict
from engine import proposers
from engine.core.errors import InvalidRequest
from engine.core.trees import ROOT, path
from engine.core.types import DraftRule, Protocol, QKind, RecordLevel, Request, SamplingParams, Tree
from engine.models.scripted import ScriptedModel
from engine.proposers.draft_model.specinfer import widths_shape
from engine.proposers.interface import Context, ProposerParts
from engine.proposers.tree_planning import TreeShape
from engine.record.effective import Effective
from engine.record.trace import decode, steps_of
from engine.sampling.draw import draw
from engine.sampling.rng import Randomness, stream_of
from engine.sampling.transforms import transform
from tests.audit.checks.simulator import record
from tests.engine.build import Setup, draft_script, generate, make_loop, requests, target_script, traces
from tests.engine.enumeration import TOLERANCE, distance, emitted_law, enumerate_decisions, target_law
from tests.support.tiers import fast_first, slow_unless

SAMPLED = SamplingParams(temperature=0.8, max_new_tokens=40, seed=5)
PENALISED = SamplingParams(temperature=0.9, repetition_penalty=1.4, presence_penalty=0.5, top_p=0.95)
VOCABULARY = 8


def build(options, drafts, rule=DraftRule.INDEPENDENT, rows=1):
    first, *others = drafts
    return proposers.build("specinfer", ProposerParts(rows, 64, rule, draw, (), first, options, tuple(others)))


def scripted(number=0, context=4096):
    return ScriptedModel(draft_script(Setup(), number), VOCABULARY, context=context)


def propose(proposer, budget, sampling=SAMPLED, seed=3, depth=99):
    request = Request("r", (0, 1, 2, 0, 1), sampling)
    context = Context(0, request, list(request.prompt), budget, Randomness(seed, 4), depth)
    proposer.start(context)
    (proposal,) = proposer.propose([context])
    return proposal


def test_widths_are_the_children_of_every_node_at_a_depth():
    assert widths_shape([2, 1], 99) == TreeShape((ROOT, 0, ROOT, 2))
    assert widths_shape([1, 2, 1], 99) == TreeShape((ROOT, 0, 1, 0, 3))
    assert len(widths_shape([3, 2, 2], 99)) == 3 + 6 + 12


@pytest.mark.parametrize("widths", [[1], [2, 1, 1], [1, 3, 2], [4, 4, 4]])
def test_a_smaller_budget_drops_the_last_branches(widths):
    whole = widths_shape(widths, 1000).parents
    for size in range(len(whole) + 3):
        assert widths_shape(widths, size).parents == whole[:size]
    first = range(-1, len(widths) - 1)
    assert whole[: len(widths)] == tuple(first), "the first branch keeps its depth"


@pytest.mark.medium
@pytest.mark.parametrize("siblings", ["with_replacement", "without_replacement"])
@pytest.mark.parametrize(
    ("vocabulary", "gamma", "widths"), fast_first([(2, 8, "2,1"), (2, 6, "1,1,1"), (3, 4, "2"), (3, 3, "1,1")])
)
@pytest.mark.parametrize("params", fast_first([SamplingParams(temperature=1.0), PENALISED]), ids=["plain", "penalised"])
def test_the_law_of_two_merged_trees_is_the_target_s(params, vocabulary, gamma, widths, siblings, monkeypatch):
    branches = enumerate_decisions(monkeypatch)
    options = {"widths": widths, "siblings": siblings}
    setup = Setup("specinfer", Protocol.TREE, gamma, vocabulary, likeness=0.3, options=options)
    params = replace(params, max_new_tokens=1 + widths.count(",") + 1)
    law = emitted_law(setup, params, branches)
    assert math.isclose(sum(law.values()), 1.0, abs_tol=TOLERANCE)
    assert distance(law, target_law(setup, params)) < TOLERANCE
    assert branches.total > 10


@pytest.mark.medium
@pytest.mark.parametrize("protocol", slow_unless([Protocol.TREE, Protocol.GUMBEL], [Protocol.TREE]))
@pytest.mark.parametrize("siblings", ["with_replacement", "without_replacement"])
def test_every_draw_and_decision_can_be_replayed(siblings, protocol):
    """Both drafters' draws are numbered by their nodes' places in the whole tree."""
    options = {"widths": "2,2", "siblings": siblings}
    generations = generate(Setup("specinfer", protocol, 12, rows=3, options=options), requests(8, SAMPLED))
    told = tuple(record(trace) for trace in traces(generations).values())
    arm = ArmRecord("candidate", ArmKind.CANDIDATE, Level.L4, Effective(), told)
    result = evaluate(checks.load("replay"), Evidence(arm), {})
    assert result.verdict is Verdict.CERTIFIED, result.summary


def test_the_drafters_share_the_budget_and_hang_from_the_root():
    proposal = propose(build({"widths": "1,1,1"}, [scripted(0), scripted(1)]), 5, seed=4)
    # a level of both drafters, then the next: chains of 3 and of 2
    assert proposal.tree.parents == (ROOT, ROOT, 0, 1, 2)
    assert proposal.q_kind is QKind.FULL


def test_a_budget_of_one_goes_to_the_first_drafter():
    (alone,) = propose(build({}, [scripted(0), scripted(1)]), 1).q
    np.testing.assert_array_equal(alone, propose(build({}, [scripted(0)]), 1).q[0])


def test_levels_that_cannot_be_emitted_are_not_drafted():
    tree = propose(build({"widths": "2,2,2", "siblings": "without_replacement"}, [scripted()]), 14, depth=2).tree
    assert tree.parents == (ROOT, ROOT, 0, 0, 1, 1)


def test_below_a_repeated_token_nothing_is_drafted():
    """Two drafters that agree: the second one's token can never be accepted, and is kept as it was drawn."""
    greedy = SamplingParams(max_new_tokens=30)
    proposal = propose(build({"widths": "1,1,1"}, [scripted(0), scripted(0)]), 6, greedy)
    first, repeated, *_ = proposal.tree.tokens
    assert first == repeated
    assert proposal.tree.parents == (ROOT, ROOT, 0, 2)


def test_a_token_drawn_twice_has_children_once():
    proposer = build({"widths": "6,1"}, [scripted()])
    tree = propose(proposer, 12).tree
    roots = [node for node, parent in enumerate(tree.parents) if parent == ROOT]
    tokens = [tree.tokens[node] for node in roots]
    assert len(set(tokens)) < len(tokens) == 6
    assert sorted(tree.parents[6:]) == sorted(tokens.index(token) for token in set(tokens))


@pytest.mark.medium
@pytest.mark.parametrize("siblings", ["with_replacement", "without_replacement"])
@pytest.mark.parametrize("rows", fast_first([3, 1]))
def test_each_drafter_reads_the_prefix_it_drafts_after(siblings, rows):
    """After acceptances in either's tree, cuts and reuse of rows, q is what the drafter says about the true prefix."""
    options = {"widths": "2,2,1", "siblings": siblings}
    setup = Setup("specinfer", Protocol.TREE, gamma=16, rows=rows, likeness=0.5, options=options)
    checked, kept = [0, 0], [0, 0]
    for generation in make_loop(setup).run(requests(12, SAMPLED)):
        trace, prompt = decode(generation.trace), generation.request.prompt
        history = [*prompt, *trace.tokens]
        for step in steps_of(trace):
            tree = Tree(tuple(trace.node_token[step.nodes].tolist()), tuple(trace.node_parent[step.nodes].tolist()))
            second = int((trace.node_parent[step.nodes] == ROOT).sum()) // 2
            for x in range(step.examined.start, step.examined.stop):
                top, *_ = nodes = path(tree, int(trace.examined_node[x]))
                drafter = int(top >= second)
                prefix = [*history[: step.position], *(tree.tokens[node] for node in nodes[:-1])]
                expected = transform(draft_script(setup, drafter)(tuple(prefix)), prefix, len(prompt), SAMPLED, ()).p
                siblings_before = [
                    tree.tokens[node]
                    for node in range(nodes[-1])
                    if tree.parents[node] == tree.parents[nodes[-1]] and (len(nodes) > 1 or (node >= second) == drafter)
                ]
                if siblings == "without_replacement":
                    expected[siblings_before] = 0.0
                np.testing.assert_allclose(trace.q_rows[x], expected / expected.sum(), rtol=1e-12, atol=0)
                checked[drafter] += 1
                kept[drafter] += int(trace.examined_accepted[x])
    assert min(checked) > 100
    assert min(kept) > 30


def test_a_drafter_with_a_smaller_context_leaves_the_others_drafting():
    proposer = build({"widths": "1,1,1"}, [scripted(0), scripted(1, context=9)], rows=2)
    loop = make_loop(Setup(protocol=Protocol.TREE, gamma=6, rows=2), proposer=proposer)
    wanted = [Request(f"r{n}", tuple(i % 8 for i in range(n)), SAMPLED, stream_of(f"r{n}")) for n in (2, 8, 9, 12)]
    for generation in loop.run(wanted):
        trace = decode(generation.trace)
        assert len(generation.tokens) == SAMPLED.max_new_tokens
        for step in steps_of(trace):
            roots = int((trace.node_parent[step.nodes] == ROOT).sum())
            depth = len(generation.request.prompt) + 40 - step.position - 1
            assert roots == (depth > 0) * (1 + (step.position < 9))


class Counting:
    """A model that counts its forwards, and how many tokens each read in its fullest row."""

    def __init__(self, model):
        self._model, self.widths = model, []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, cache, placement, want):
        self.widths.append(max(placement.lengths))
        return self._model.forward(cache, placement, want)


def test_a_drafter_runs_once_per_level_for_all_rows():
    models = [Counting(scripted(0)), Counting(scripted(1))]
    proposer = build({"widths": "1,1,1"}, models, rows=3)
    contexts = []
    for row in range(3):
        request = Request(f"r{row}", (row, 1, 2), SAMPLED)
        contexts.append(Context(row, request, list(request.prompt), 5, Randomness(3, row)))
        proposer.start(contexts[-1])
    assert [len(model.widths) for model in models] == [3, 3]
    proposer.propose(contexts)
    assert [len(model.widths) for model in models] == [3 + 3, 3 + 2]


def test_accepted_nodes_are_not_read_again():
    """The draft is the target: all of a chain of 3 is accepted, and only its last token and the bonus are new."""
    draft = Counting(ScriptedModel(target_script(Setup()), 8))
    loop = make_loop(Setup(protocol=Protocol.GREEDY, gamma=3), proposer=build({"widths": "1,1,1"}, [draft]))
    list(loop.run([Request("r", (1, 2, 3), SamplingParams(max_new_tokens=41))]))
    assert draft.widths == [2, *[1, 1, 1], *[2, 1, 1] * 9]


def tokens_per_step(options):
    setup = Setup("specinfer", Protocol.TREE, gamma=6, rows=8, level=RecordLevel.TOKENS, likeness=0.4, options=options)
    found = traces(generate(setup, requests(24, replace(SAMPLED, max_new_tokens=60)))).values()
    return sum(len(trace.tokens) for trace in found) / sum(trace.steps for trace in found)


@pytest.mark.slow
def test_siblings_without_replacement_are_accepted_more_often():
    assert tokens_per_step({"widths": "3", "siblings": "without_replacement"}) > tokens_per_step({"widths": "3"}) + 0.02


def test_a_draft_like_the_target_is_accepted_whole_under_shared_noise():
    """The target itself drafts: the first child is always its own sample, so whole branches are accepted."""
    proposer = build({"widths": "2,1,1"}, [ScriptedModel(target_script(Setup()), 8)], DraftRule.COUPLED)
    loop = make_loop(Setup(protocol=Protocol.GUMBEL, gamma=6), proposer=proposer)
    for generation in loop.run(requests(6, SAMPLED)):
        trace = decode(generation.trace)
        depths = len(generation.request.prompt) + 40 - trace.position - 1
        np.testing.assert_array_equal(trace.n_emitted, 1 + np.minimum(3, depths))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": ""}, "option widths must be numbers such as"),
        ({"widths": "2,x"}, "option widths must be numbers"),
        ({"widths": "2,0"}, "each a whole number from 1 to 64"),
        ({"widths": "1.5"}, "option widths must be numbers"),
        ({"widths": 2}, "option widths must be numbers"),
        ({"siblings": "both"}, "option siblings must be with_replacement or without_replacement"),
        ({"width": "2"}, "has no option 'width'; it has: siblings, widths"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InvalidRequest, match=message):
        build(options, [scripted()])


def test_a_draft_model_is_asked_for():
    with pytest.raises(InvalidRequest, match="needs a draft model"):
        proposers.build("specinfer", ProposerParts(1, 8, DraftRule.INDEPENDENT, draw, ()))
