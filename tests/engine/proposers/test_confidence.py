"""Stopping by the draft's distribution keeps the law; dropping a token for its own probability does not."""

from dataclasses import replace

import numpy as np
import pytest

from engine.core.errors import InvalidRequest
from engine.core.types import Proposal, Protocol, SamplingParams, Tree
from engine.proposers.confidence import unsure
from engine.proposers.draft_model import chain_draft
from engine.record.trace import decode
from engine.sampling.draw import DraftContext
from engine.sampling.rng import Randomness
from engine.sampling.transforms import softmax
from tests.engine.build import Setup, generate, make_loop, requests
from tests.engine.enumeration import TOLERANCE, distance, emitted_law, enumerate_decisions, target_law
from tests.support.tiers import slow_unless

STOP = 0.71
"""Between the largest entries of the q rows that follow the prompt of the enumeration."""
SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=3)
CHAINS = {"draft_model": {}, "early_exit": {}, "layer_skip": {"skip_ffn": "1"}}


class Truncating:
    """Another proposer's chains, each cut where `drops` says so of the drafted tokens' q rows."""

    def __init__(self, inner, drops):
        self._inner, self._drops, self.facts, self.dropped = inner, drops, inner.facts, 0

    def start(self, context):
        self._inner.start(context)

    def propose(self, contexts):
        return [self._cut(each) for each in self._inner.propose(contexts)]

    def _cut(self, proposal):
        tokens = proposal.tree.tokens
        kept = next((i for i, token in enumerate(tokens) if self._drops(proposal.q, tokens, i)), len(tokens))
        self.dropped += kept < len(tokens)
        if not kept:
            return Proposal()
        return replace(proposal, tree=Tree.chain(tokens[:kept]), q=proposal.q[:kept], uniforms=proposal.uniforms[:kept])

    def observe(self, context, verdict):
        self._inner.observe(context, verdict)

    def finish(self, row):
        self._inner.finish(row)


def setup_of(kind, protocol, **options):
    return Setup(kind, protocol, gamma=2, vocabulary=3, options={**CHAINS[kind], **options})


def truncated_gap(drops, branches, protocol=Protocol.CHAIN):
    setup = setup_of("draft_model", protocol)
    proposer = Truncating(make_loop(setup, capacity=32)._proposer, drops)
    law = emitted_law(setup, SAMPLED, branches, make_loop(setup, capacity=32, proposer=proposer))
    assert proposer.dropped > 0
    return distance(law, target_law(setup, SAMPLED))


@pytest.fixture
def branches(monkeypatch):
    return enumerate_decisions(monkeypatch)


@pytest.mark.medium
@pytest.mark.parametrize(
    "protocol",
    slow_unless([Protocol.CHAIN, Protocol.BLOCK, Protocol.TREE, Protocol.GUMBEL], [Protocol.CHAIN, Protocol.TREE]),
    ids=str,
)
@pytest.mark.parametrize("kind", CHAINS)
def test_stopping_where_q_is_flat_keeps_the_law(kind, protocol, branches, monkeypatch):
    answers = set()
    made = chain_draft.DrawSettings.of
    seen = {"unsure": lambda *given: answers.add(unsure(*given)) or unsure(*given)}
    monkeypatch.setattr(chain_draft.DrawSettings, "of", lambda *given: replace(made(*given), **seen))
    setup = setup_of(kind, protocol, stop_below=STOP)
    law = emitted_law(setup, SAMPLED, branches)
    assert answers == {True, False}
    assert distance(law, target_law(setup, SAMPLED)) < TOLERANCE


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.BLOCK], ids=str)
def test_dropping_a_drawn_token_because_its_q_row_is_flat_keeps_the_law(protocol, branches):
    assert truncated_gap(lambda q, tokens, i: q[i].max() < STOP, branches, protocol) < TOLERANCE


@pytest.mark.medium
@pytest.mark.parametrize("protocol", [Protocol.CHAIN, Protocol.BLOCK], ids=str)
def test_dropping_a_token_because_of_its_own_q_breaks_the_law(protocol, branches):
    assert truncated_gap(lambda q, tokens, i: q[i, tokens[i]] < STOP, branches, protocol) > 1e-2


@pytest.mark.medium
def test_dropping_a_token_because_of_what_follows_it_breaks_the_law(branches):
    def drops(q, tokens, i):
        return i + 1 < len(tokens) and q[i + 1].max() < STOP

    assert truncated_gap(drops, branches) > 1e-3


@pytest.mark.medium
@pytest.mark.parametrize("temperature", slow_unless([0.0, 0.8], [0.8]))
@pytest.mark.parametrize("kind", CHAINS)
def test_drafts_end_where_the_draft_is_unsure(kind, temperature):
    protocol = Protocol.CHAIN if temperature else Protocol.GREEDY
    wanted = requests(6, SamplingParams(temperature=temperature, max_new_tokens=20, seed=3))
    lengths = {}
    for stop_below in (0.0, 0.35, 0.6, 1.0):
        options = {**CHAINS[kind], "stop_below": stop_below}
        got = generate(Setup(kind, protocol, gamma=4, rows=3, options=options), wanted)
        lengths[stop_below] = np.concatenate([decode(each.trace).n_drafted for each in got.values()])
    means = [each.mean() for each in lengths.values()]
    assert means == sorted(means, reverse=True)
    assert len(set(means)) == len(means)
    assert set(lengths[0.35]) == {0, 1, 2, 3, 4}
    assert set(lengths[1.0]) == {0}


@pytest.mark.parametrize(("temperature", "power"), [(0.0, 1.0), (1.0, 1.0), (0.5, 2.0)])
def test_the_threshold_is_on_the_largest_q(temperature, power):
    """At temperature 0 on that of temperature 1, as q itself is one-hot there."""
    scores = np.log([0.5, 0.3, 0.2])
    largest = softmax(power * scores).max()
    context = DraftContext([0, 1], 1, SamplingParams(temperature=temperature), (), Randomness(1, 2))
    assert unsure(largest + 1e-9, scores, context)
    assert not unsure(largest - 1e-9, scores, context)
    assert not unsure(0.0, scores, context)


def test_masked_tokens_do_not_count():
    context = DraftContext([0], 1, SamplingParams(temperature=1.0, bad_words=((0,),)), (), Randomness(1, 2))
    assert unsure(0.65, np.log([0.8, 0.12, 0.08]), context)
    assert not unsure(0.55, np.log([0.8, 0.12, 0.08]), context)


@pytest.mark.parametrize("value", [-0.1, 1.1, "0.5", True])
@pytest.mark.parametrize("kind", CHAINS)
def test_the_threshold_is_a_number_from_0_to_1(kind, value):
    with pytest.raises(InvalidRequest, match=f"{kind}: option stop_below must be a number from 0"):
        make_loop(setup_of(kind, Protocol.CHAIN, stop_below=value))
