"""Drafts as long as they pay: the cost model's length, from the request's own past only; the law stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine import proposers
from engine.core.errors import InvalidRequest
from engine.core.types import DraftRule, Protocol, SamplingParams
from engine.proposers import options
from engine.proposers.adaptive_length import FadingCounts, PayingProposer
from engine.proposers.interface import ProposerParts
from engine.record.cost import best_gamma, speedup
from engine.sampling.draw import draw
from tests.engine.build import Setup, generate, make_loop, requests, traces
from tests.engine.enumeration import TOLERANCE, distance, emitted_law, enumerate_decisions, target_law

COST = 0.4
SAMPLED = SamplingParams(temperature=0.8, max_new_tokens=40, seed=3)
PAYING = Setup("draft_model", gamma=5, options={"token_cost": COST})


@pytest.mark.parametrize("cost", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.5, 0.8, 0.99, 1.0])
def test_the_length_is_the_best_of_the_cost_model(alpha, cost):
    for most in range(9):
        gains = [1.0] + [speedup(alpha, k, cost) for k in range(1, most + 1)]
        assert gains[best_gamma(alpha, cost, most=most)] == pytest.approx(max(gains), rel=1e-12)


def test_of_equal_lengths_the_shortest_is_drafted():
    assert best_gamma(0.25, 0.25, most=8) == 0
    assert best_gamma(1.0, 1.0, most=8) == 0


def test_counts_begin_at_the_imagined_ones_and_forget():
    counts = FadingCounts()
    assert counts.alpha == pytest.approx(0.7)
    rejected = counts.after(3, 0)
    assert rejected.alpha == pytest.approx(1.4 / 3.0)
    # tokens after the rejected one count for nothing
    assert rejected == counts.after(1, 0)
    assert counts.after(3, 3).alpha == pytest.approx(4.4 / 5.0)
    again = rejected
    for _ in range(20):
        again = again.after(0, 0)
    assert rejected.alpha < again.alpha == pytest.approx(0.7, abs=0.01)


def drafted(setup, wanted):
    return {name: each.n_drafted.tolist() for name, each in traces(generate(setup, wanted)).items()}


def expected_lengths(trace, gamma):
    """The lengths by the rule, from a record alone."""
    counts, found = FadingCounts(), []
    left = trace.header.sampling.max_new_tokens
    accepted = np.minimum(trace.n_emitted - 1, trace.n_drafted)
    for drafts, kept, emitted in zip(
        trace.n_drafted.tolist(), accepted.tolist(), trace.n_emitted.tolist(), strict=True
    ):
        found.append(best_gamma(counts.alpha, COST, most=min(gamma, left - 1)))
        counts, left = counts.after(drafts, kept), left - emitted
    return found


@pytest.mark.medium
def test_a_record_shows_the_lengths_of_the_rule():
    lengths = set()
    for trace in traces(generate(PAYING, requests(6, SAMPLED))).values():
        assert trace.n_drafted.tolist() == expected_lengths(trace, PAYING.gamma)
        lengths.update(trace.n_drafted.tolist())
    assert len(lengths) >= 4


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["draft_model", "ngram"])
def test_neighbours_change_no_length(kind):
    setup = replace(PAYING, proposer=kind)
    alone = drafted(setup, requests(8, SAMPLED))
    assert drafted(replace(setup, rows=3), requests(8, SAMPLED)) == alone


def test_drafts_that_are_never_kept_nearly_stop_and_are_tried_again():
    unlike = replace(PAYING, likeness=0.0, vocabulary=64)
    (found,) = drafted(unlike, requests(1, replace(SAMPLED, temperature=0.0, max_new_tokens=120))).values()
    assert 0 < sum(found) < 0.7 * len(found)
    assert max(found[60:]) > 0


def test_drafts_that_are_always_kept_are_as_long_as_allowed():
    like = replace(PAYING, likeness=1.0)
    (found,) = drafted(like, requests(1, replace(SAMPLED, temperature=0.0, max_new_tokens=100))).values()
    assert set(found[3:-2]) == {5}


@pytest.mark.medium
def test_without_a_cost_nothing_changes():
    wanted = requests(4, SAMPLED)
    assert drafted(replace(PAYING, options={"token_cost": 0}), wanted) == drafted(replace(PAYING, options={}), wanted)


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.BLOCK, Protocol.GUMBEL], ids=str)
def test_the_law_stays_over_steps_whose_lengths_differ(protocol, monkeypatch):
    params = SamplingParams(temperature=0.9, max_new_tokens=4)
    branches = enumerate_decisions(monkeypatch)
    setup = Setup("draft_model", protocol, gamma=2, vocabulary=2, options={"token_cost": COST})
    law = emitted_law(setup, params, branches)
    assert distance(law, target_law(setup, params)) < TOLERANCE


class Peeking(PayingProposer):
    """Shortens a draft after it was drawn, when its first token is the likely one."""

    def propose(self, contexts):
        made = super().propose(contexts)
        return [type(each)() if each.tree.tokens[:1] == (0,) else each for each in made]


def test_a_length_that_depends_on_the_draft_breaks_the_law(monkeypatch):
    params = SamplingParams(temperature=0.9, max_new_tokens=3)
    branches = enumerate_decisions(monkeypatch)
    setup = Setup("draft_model", gamma=2, vocabulary=2)
    peeking = Peeking(make_loop(setup, capacity=32)._proposer, COST)
    law = emitted_law(setup, params, branches, make_loop(setup, capacity=32, proposer=peeking))
    assert distance(law, target_law(setup, params)) > 0.01


def test_the_facts_say_that_lengths_vary():
    facts = make_loop(PAYING)._proposer.facts
    assert facts.steady is None
    assert facts.options == {"stop_below": 0.0, "token_cost": COST}
    assert make_loop(replace(PAYING, proposer="ngram"))._proposer.facts.state == "request"


def test_trees_have_no_such_option():
    parts = ProposerParts(1, 8, DraftRule.GREEDY, draw, (), options={"tree": True, "token_cost": 0.2})
    with pytest.raises(InvalidRequest, match=r"suffix: option token_cost is for chains.* leave one of them out"):
        proposers.build("suffix", parts)
    with pytest.raises(InvalidRequest, match="sequoia has no option 'token_cost'"):
        options.read("sequoia", {"token_cost": 0.2})


def test_a_cost_is_a_number_of_forwards():
    with pytest.raises(InvalidRequest, match=r"ngram: option token_cost must be a number from 0\.0 to 8\.0, not 9"):
        options.read("ngram", {"token_cost": 9})
