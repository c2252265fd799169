"""The law of trees and blocks, by enumerating every random decision of the real loop; the classic mistakes break it."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from engine.core.types import DraftRule, Protocol, Request, SamplingParams
from engine.sampling.draw import Siblings, draw_siblings
from engine.verify import block
from tests.engine.branching import DrawnTree, TwoDrafters
from tests.engine.build import Setup, make_loop
from tests.engine.enumeration import PROMPT, TOLERANCE, distance, emitted_law, enumerate_decisions, target_law
from tests.support.samplings import SAMPLINGS
from tests.support.tiers import fast_first, slow_unless

BROKEN = 1e-4
"""Every mistake below moves some sequence's probability by more than this."""


@pytest.fixture
def branches(monkeypatch):
    return enumerate_decisions(monkeypatch)


def gap(setup, sampling, branches, proposer=None):
    law = emitted_law(setup, sampling, branches, make_loop(setup, capacity=32, proposer=proposer))
    assert math.isclose(sum(law.values()), 1.0, abs_tol=1e-9)
    return distance(law, target_law(setup, sampling))


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("how", Siblings, ids=str)
@pytest.mark.parametrize(("vocabulary", "widths"), [(4, (2,)), (3, (3,)), (2, (2, 1))], ids=str)
def test_the_tree_rule_keeps_the_law(name, how, vocabulary, widths, branches):
    setup = Setup(None, Protocol.TREE, gamma=8, vocabulary=vocabulary)
    sampling = replace(SAMPLINGS[name], max_new_tokens=1 + len(widths))
    assert gap(setup, sampling, branches, DrawnTree(setup, how, widths)) < TOLERANCE
    assert branches.total > 2


@pytest.mark.medium
@pytest.mark.parametrize("name", slow_unless(SAMPLINGS, ["penalties", "top_p", "top_k"]))
def test_several_drafters_keep_the_law(name, branches):
    setup = Setup(None, Protocol.TREE, gamma=4, vocabulary=4)
    assert gap(setup, replace(SAMPLINGS[name], max_new_tokens=3), branches, TwoDrafters(setup)) < TOLERANCE


@pytest.mark.parametrize("how", fast_first([Siblings.TOP, Siblings.WITHOUT_REPLACEMENT]), ids=str)
def test_a_tree_under_shared_noise_keeps_the_law(how, branches):
    setup = Setup(None, Protocol.GUMBEL, gamma=8, vocabulary=3)
    proposer = DrawnTree(setup, how, (2, 1), DraftRule.COUPLED)
    assert gap(setup, SamplingParams(temperature=1.0, max_new_tokens=3), branches, proposer) < TOLERANCE


@pytest.mark.medium
@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize(("vocabulary", "gamma"), [(2, 3), (3, 2), (8, 1)])
@pytest.mark.parametrize(("proposer", "options"), [("draft_model", {}), ("ngram", {"min_ngram": 1})])
def test_the_block_rule_keeps_the_law(name, vocabulary, gamma, proposer, options, branches):
    setup = Setup(proposer, Protocol.BLOCK, gamma=gamma, vocabulary=vocabulary, options=options)
    assert gap(setup, replace(SAMPLINGS[name], max_new_tokens=gamma + 1), branches) < TOLERANCE


@pytest.mark.medium
def test_a_block_is_longer_on_average_than_tokens_one_by_one(branches):
    sampling = SamplingParams(temperature=1.0, max_new_tokens=3)
    kept = {}
    for protocol in (Protocol.CHAIN, Protocol.BLOCK):
        loop = make_loop(Setup("draft_model", protocol, gamma=2, vocabulary=3, likeness=0.3), capacity=32)
        kept[protocol] = first_step_length(loop, sampling, branches)
    assert kept[Protocol.BLOCK] > kept[Protocol.CHAIN] + 0.005


def first_step_length(loop, sampling, branches):
    """Expected tokens of the first step."""
    branches.pending, lengths, verify = [[]], [], loop._verifier.verify

    def measured(*given):
        verdict = verify(*given)
        lengths.append(len(verdict.emitted))
        return verdict

    expected = 0.0
    loop._verifier = SimpleNamespace(facts=loop._verifier.facts, verify=measured)
    for branch in branches:
        lengths.clear()
        list(loop.run([Request("r", PROMPT, sampling)]))
        expected += branch.probability * lengths[0]
    return expected


def test_verifying_draws_without_replacement_by_the_full_q_breaks_the_law(branches, monkeypatch):
    """Sequoia's rule with SpecInfer's q: off by a hundredth, while acceptance looks healthy."""
    monkeypatch.setattr("tests.engine.branching.draw_siblings", with_the_first_q)
    setup = Setup(None, Protocol.TREE, gamma=8, vocabulary=4, likeness=0.3)
    sampling = SamplingParams(temperature=1.0, max_new_tokens=2)
    assert gap(setup, sampling, branches, DrawnTree(setup, Siblings.WITHOUT_REPLACEMENT, (3,))) > BROKEN


def with_the_first_q(*given):
    draws = draw_siblings(*given)
    return [replace(each, q=draws[0].q) for each in draws]


def test_resampling_from_p_after_the_last_child_breaks_the_law(branches, monkeypatch):
    monkeypatch.setattr("engine.verify.tree.residual", lambda left, proposal, node: left)
    setup = Setup(None, Protocol.TREE, gamma=8, vocabulary=3)
    sampling = SamplingParams(temperature=1.0, max_new_tokens=2)
    assert gap(setup, sampling, branches, DrawnTree(setup, Siblings.WITHOUT_REPLACEMENT, (2,))) > BROKEN


@pytest.mark.medium
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_dropping_a_child_for_its_own_probability_breaks_the_law(share, branches, monkeypatch):
    """Trimming that is no function of the prefix (a node goes because of its own q)."""

    def trimmed(*given):
        draws = draw_siblings(*given)
        return [each for each in draws if each.q[each.token] >= share] or draws[:0]

    monkeypatch.setattr("tests.engine.branching.draw_siblings", trimmed)
    setup = Setup(None, Protocol.TREE, gamma=8, vocabulary=4, likeness=0.3)
    sampling = SamplingParams(temperature=1.0, max_new_tokens=2)
    assert gap(setup, sampling, branches, DrawnTree(setup, Siblings.WITH_REPLACEMENT, (2,))) > BROKEN


def test_a_block_kept_with_its_weight_breaks_the_law(branches, monkeypatch):
    """P_i itself for the chance to keep a prefix, instead of R_i / (R_i + 1 - P_i)."""
    original = block.prefixes_of

    def hasty(proposal, rows):
        return [replace(each, over=each.weight, total=1.0) for each in original(proposal, rows)]

    monkeypatch.setattr("engine.verify.block.prefixes_of", hasty)
    setup = Setup("draft_model", Protocol.BLOCK, gamma=2, vocabulary=3, likeness=0.3)
    assert gap(setup, SamplingParams(temperature=1.0, max_new_tokens=3), branches) > BROKEN
