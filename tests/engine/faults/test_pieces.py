"""The pieces that faults are made of are the real thing until one is replaced; the exact law of what they break."""

import functools

import pytest

from engine import verify
from engine.core.types import Protocol, SamplingParams
from engine.decode.loop import Loop
from engine.decode.seams import as_it_is
from engine.faults.chain_walk import ChainWalk
from engine.faults.proposals import followed_surely, sure_ones
from engine.faults.wrappers import ChangedProposer
from tests.engine.build import Setup, make_loop, requests
from tests.engine.enumeration import TOLERANCE, distance, emitted_law, enumerate_decisions, target_law

SAMPLED = SamplingParams(temperature=0.9, top_k=6, max_new_tokens=40, seed=3)


def with_verifier(setup, verifier) -> Loop:
    loop = make_loop(setup)
    loop._verifier = verifier
    return loop


@pytest.mark.medium
def test_the_walk_with_no_piece_replaced_is_the_chain_rule():
    setup, wanted = Setup(), requests(6, SAMPLED)
    facts = verify.load(Protocol.CHAIN).facts
    plain, walked = make_loop(setup).run(wanted), with_verifier(setup, ChainWalk(facts)).run(wanted)
    assert [each.tokens for each in plain] == [each.tokens for each in walked]


def law_with(offer, branches):
    """How far the exact law of three tokens is from the target's, with proposals changed on the way."""
    setup = Setup(gamma=2, vocabulary=4, likeness=0.3)
    params = SamplingParams(temperature=1.0, max_new_tokens=3)
    loop = make_loop(setup, capacity=32)
    loop._proposer = ChangedProposer(loop._proposer, offer=offer)
    return distance(emitted_law(setup, params, branches, loop), target_law(setup, params))


@pytest.mark.parametrize("offer", [followed_surely, sure_ones])
@pytest.mark.slow
def test_a_draft_cut_by_its_own_tokens_breaks_the_law(offer, monkeypatch):
    assert law_with(functools.partial(offer, least=0.6), enumerate_decisions(monkeypatch)) > 1e-4


@pytest.mark.medium
def test_an_unchanged_proposer_keeps_the_law(monkeypatch):
    assert law_with(as_it_is, enumerate_decisions(monkeypatch)) < TOLERANCE
