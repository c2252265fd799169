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
from engine.core.trees import ROOT, children, depths, path_tokens
from engine.core.types import DraftRule, Protocol, QKind, RecordLevel, Request, SamplingParams, Tree
from engine.models.scripted import ScriptedModel
from engine.proposers.draft_model.sequoia import planned_shape
from engine.proposers.interface import Context, ProposerParts
from engine.proposers.tree_planning import best_shape
from engine.record.effective import Effective
from engine.record.trace import steps_of
from engine.sampling.draw import draw, draw_siblings
from engine.sampling.rng import Randomness
from engine.sampling.transforms import transform
from tests.audit.checks.simulator import record
from tests.engine.build import Setup, draft_script, generate, make_loop, requests, traces
from tests.engine.enumeration import TOLERANCE, distance, emitted_law, enumerate_decisions, target_law
from tests.support.tiers import slow_unless

SAMPLED = SamplingParams(temperature=0.8, max_new_tokens=40, seed=5)
PENALISED = SamplingParams(temperature=0.9, repetition_penalty=1.4, presence_penalty=0.5, top_p=0.95)
BUSHY = {"rates": "0.5,0.3,0.15", "depth": 3}


def build(options, rule=DraftRule.INDEPENDENT):
    draft = ScriptedModel(draft_script(Setup()), 8)
    return proposers.build("sequoia", ProposerParts(1, 64, rule, draw, (), draft, options))


def propose(proposer, budget, sampling=SAMPLED, depth=99):
    request = Request("r", (0, 1, 2, 0, 1), sampling)
    context = Context(0, request, list(request.prompt), budget, Randomness(3, 4), depth)
    proposer.start(context)
    (proposal,) = proposer.propose([context])
    return proposal


@pytest.mark.parametrize("budget", [0, 1, 2, 5, 9, 16])
@pytest.mark.parametrize("sampling", [SAMPLED, replace(SAMPLED, temperature=0.0)], ids=["sampled", "greedy"])
def test_the_tree_is_the_planned_one_of_the_budget(budget, sampling):
    wanted = best_shape((0.5, 0.3, 0.15), budget, 3).shape.parents
    assert propose(build(BUSHY), budget, sampling).tree.parents == wanted


@pytest.mark.parametrize("depth", [1, 2, 3, 9])
def test_levels_that_cannot_be_emitted_are_not_planned(depth):
    tree = propose(build(BUSHY), 12, depth=depth).tree
    # 3 + 9 nodes are all that two levels have places for
    assert len(tree) == (3 if depth == 1 else 12)
    assert max(depths(tree)) <= min(depth, 3)


def test_a_size_is_planned_once_and_declared():
    proposer = build({**BUSHY, "size": 5})
    shape = best_shape((0.5, 0.3, 0.15), 5, 3).shape
    assert proposer.facts.options == {**BUSHY, "size": 5, "shape": ",".join(str(each) for each in shape.parents)}
    assert propose(proposer, 16).tree.parents == shape.parents
    assert propose(proposer, 4).tree.parents == best_shape((0.5, 0.3, 0.15), 4, 3).shape.parents


@pytest.mark.parametrize(("rates", "depth", "places"), [((1.0,), 4, 4), ((0.5, 0.2), 3, 14), ((0.5, 0.2, 0.1), 1, 3)])
def test_a_size_without_places_becomes_the_largest_tree(rates, depth, places):
    assert len(planned_shape(rates, places, depth)) == len(planned_shape(rates, places + 7, depth)) == places


def test_children_are_distinct_and_their_q_has_lost_the_earlier_ones():
    proposal = propose(build(BUSHY), 16)
    tree, history = proposal.tree, [0, 1, 2, 0, 1]
    assert proposal.q_kind is QKind.FULL
    families = 0
    for node in range(ROOT, len(tree)):
        prefix = [*history, *path_tokens(tree, node)]
        left = transform(draft_script(Setup())(tuple(prefix)), prefix, 5, SAMPLED, ()).p.copy()
        for child in children(tree, node):
            np.testing.assert_allclose(proposal.q[child], left / left.sum(), rtol=1e-12, atol=0)
            left[tree.tokens[child]] = 0.0
        families += len(children(tree, node)) > 1
    assert families > 2


@pytest.mark.parametrize("rule", [DraftRule.INDEPENDENT, DraftRule.COUPLED])
def test_a_q_of_few_tokens_has_few_children(rule):
    tree = propose(build(BUSHY, rule), 16, replace(SAMPLED, top_k=2)).tree
    assert len(children(tree, ROOT)) == 2
    assert all(len(children(tree, node)) <= 2 for node in range(len(tree)))
    assert len(tree) < 16


@pytest.mark.parametrize("protocol", [Protocol.TREE, Protocol.GUMBEL])
@pytest.mark.parametrize(
    ("vocabulary", "gamma", "tokens"), slow_unless([(3, 3, 2), (4, 3, 2), (2, 5, 3), (3, 4, 3)], [(3, 3, 2), (2, 5, 3)])
)
@pytest.mark.parametrize("params", [SamplingParams(temperature=1.0), PENALISED], ids=["plain", "penalised"])
def test_the_law_is_the_target_s(params, vocabulary, gamma, tokens, protocol, monkeypatch):
    branches = enumerate_decisions(monkeypatch)
    setup = Setup("sequoia", protocol, gamma, vocabulary, likeness=0.3, options=BUSHY)
    params = replace(params, max_new_tokens=tokens)
    law = emitted_law(setup, params, branches)
    assert math.isclose(sum(law.values()), 1.0, abs_tol=TOLERANCE)
    assert distance(law, target_law(setup, params)) < TOLERANCE


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.TREE, Protocol.GUMBEL])
@pytest.mark.parametrize("params", [SAMPLED, replace(PENALISED, max_new_tokens=40)], ids=["plain", "penalised"])
def test_every_draw_and_decision_can_be_replayed(params, protocol):
    generations = generate(Setup("sequoia", protocol, 12, rows=3, options=BUSHY), requests(8, params))
    told = tuple(record(trace) for trace in traces(generations).values())
    arm = ArmRecord("candidate", ArmKind.CANDIDATE, Level.L4, Effective(), told)
    result = evaluate(checks.load("replay"), Evidence(arm), {})
    assert result.verdict is Verdict.CERTIFIED, result.summary


@pytest.mark.medium
def test_the_full_q_for_every_child_would_break_the_law(monkeypatch):
    """The negative control: SpecInfer's q under draws without replacement."""

    def with_the_first_q(*given):
        draws = draw_siblings(*given)
        return [replace(each, q=draws[0].q) for each in draws]

    branches = enumerate_decisions(monkeypatch)
    setup = Setup("sequoia", Protocol.TREE, gamma=3, vocabulary=4, likeness=0.3, options=BUSHY)
    params = SamplingParams(temperature=1.0, max_new_tokens=2)
    loop = make_loop(setup, capacity=32, siblings=with_the_first_q)
    assert distance(emitted_law(setup, params, branches, loop), target_law(setup, params)) > 1e-4


def run(options, gamma):
    setup = Setup("sequoia", Protocol.TREE, gamma, 8, rows=8, level=RecordLevel.TOKENS, likeness=0.4, options=options)
    return traces(generate(setup, requests(32, replace(SAMPLED, max_new_tokens=60)))).values()


def tokens_per_step(found):
    return sum(len(trace.tokens) for trace in found) / sum(trace.steps for trace in found)


def measured_rates(found, ranks):
    """From the root's children: how often each was the accepted one."""
    counts, trials = [0] * ranks, 0
    for trace in found:
        for step in steps_of(trace):
            parents = trace.node_parent[step.nodes]
            roots = children(Tree((0,) * len(parents), tuple(parents.tolist())), ROOT)
            if len(roots) < ranks:
                continue
            trials += 1
            for x in range(step.examined.start, step.examined.stop):
                node = int(trace.examined_node[x])
                if node in roots and trace.examined_accepted[x]:
                    counts[roots.index(node)] += 1
    return tuple(count / trials for count in counts)


@pytest.mark.slow
def test_a_tree_planned_from_measured_rates_beats_the_chain_of_its_size():
    wide = run({"rates": "0.3,0.3,0.3", "depth": 1}, 3)
    rates = measured_rates(wide, 3)
    assert rates[0] > 2 * max(rates[1:])
    found = tokens_per_step(run({"rates": ",".join(map(str, rates)), "depth": 8}, 8))
    assert math.isclose(found, best_shape(rates, 8, 8).expected_tokens, rel_tol=0.05)
    assert found > 1.1 * tokens_per_step(run({"rates": "1", "depth": 8}, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rates": ""}, "option rates must be numbers such as"),
        ({"rates": "0.5,nan"}, "option rates must be numbers"),
        ({"rates": "0.5,-0.1"}, "each a number from 0.0 to 1.0"),
        ({"rates": "0.7,0.4"}, "option rates must sum to at most 1, not 1.1"),
        ({"depth": 0}, "option depth must be a whole number from 1 to 64"),
        ({"size": -1}, "option size must be a whole number"),
        ({"rate": "1"}, "has no option 'rate'; it has: depth, rates, shape, size"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InvalidRequest, match=message):
        build(options)


def test_a_draft_model_is_asked_for():
    with pytest.raises(InvalidRequest, match="needs a draft model"):
        proposers.build("sequoia", ProposerParts(1, 8, DraftRule.INDEPENDENT, draw, ()))


# rates by level, a given shape, and what is declared


def test_rates_may_differ_by_level():
    """Level 1 wants breadth, later levels depth."""
    rates = "0.3,0.3,0.3/0.9,0.05"
    wanted = best_shape(((0.3, 0.3, 0.3), (0.9, 0.05)), 9, 6).shape
    assert propose(build({"rates": rates, "depth": 6}), 9).tree.parents == wanted.parents
    assert len(children(Tree((0,) * 9, wanted.parents), ROOT)) == 3
    assert planned_shape(((0.5, 0.2), (0.7,)), 99, 3).parents == (-1, -1, 0, 1, 2, 3)


def test_a_given_shape_is_drafted_and_cut_to_what_fits():
    proposer = build({"shape": "-1,-1,0,0,1,4"})
    assert proposer.facts.options == {"shape": "-1,-1,0,0,1,4"}
    assert propose(proposer, 16).tree.parents == (-1, -1, 0, 0, 1, 4)
    assert propose(proposer, 3).tree.parents == (-1, -1, 0)
    assert propose(proposer, 16, depth=2).tree.parents == (-1, -1, 0, 0, 1)
    assert propose(proposer, 16, depth=1).tree.parents == (-1, -1)


@pytest.mark.parametrize("options", [BUSHY, {**BUSHY, "size": 5}, {"shape": "-1,-1,0,1,1,1,1"}])
@pytest.mark.parametrize("gamma", [3, 6])
def test_the_tree_is_declared_for_the_arm_s_gamma(options, gamma):
    draft = ScriptedModel(draft_script(Setup()), 8)
    parts = ProposerParts(1, 64, DraftRule.INDEPENDENT, draw, (), draft, options, gamma=gamma)
    proposer = proposers.build("sequoia", parts)
    assert proposer.facts.options["shape"] == ",".join(map(str, propose(proposer, gamma).tree.parents))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "0"}, "option shape must be the parent of each node"),
        ({"shape": "-1,x"}, "option shape must be"),
        ({"shape": "-1,-1,0", "rates": "0.5", "size": 3}, "option shape is the whole tree; leave out rates, size"),
        ({"rates": "0.5/"}, "with / between levels"),
        ({"rates": "0.5/0.7,0.4"}, "must sum to at most 1, not 1.1"),
    ],
)
def test_levels_and_shapes_are_checked(options, message):
    with pytest.raises(InvalidRequest, match=message):
        build(options)
