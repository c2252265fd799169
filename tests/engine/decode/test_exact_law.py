"""The law of the emitted tokens, by enumerating every random decision of the real loop."""

import math
from dataclasses import replace

import numpy as np
import pytest

from engine.core.types import DraftRule, Protocol, SamplingParams
from engine.verify.chain import ChainVerifier
from tests.engine.build import Setup
from tests.engine.enumeration import TOLERANCE, distance, emitted_law, enumerate_decisions, target_law
from tests.support.samplings import SAMPLINGS
from tests.support.tiers import fast_first


@pytest.fixture
def branches(monkeypatch):
    return enumerate_decisions(monkeypatch)


SIZES = [(2, 3), (3, 2), (8, 1)]


@pytest.mark.medium
@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize(("vocabulary", "gamma"), fast_first(SIZES))
@pytest.mark.parametrize(
    ("proposer", "protocol"),
    [("draft_model", Protocol.CHAIN), ("ngram", Protocol.CHAIN), ("draft_model", Protocol.GUMBEL)],
    ids=["chain-soft", "chain-one-hot", "gumbel"],
)
def test_the_law_of_the_first_tokens_is_the_target_s(name, vocabulary, gamma, proposer, protocol, branches):
    options = {"min_ngram": 1} if proposer == "ngram" else {}
    setup = Setup(proposer=proposer, protocol=protocol, gamma=gamma, vocabulary=vocabulary, options=options)
    sampling = replace(SAMPLINGS[name], max_new_tokens=gamma + 1)
    law = emitted_law(setup, sampling, branches)
    assert branches.total > 2
    assert math.isclose(sum(law.values()), 1.0, abs_tol=TOLERANCE)
    assert distance(law, target_law(setup, sampling)) < TOLERANCE


@pytest.mark.slow
def test_a_longer_draft_over_more_tokens(branches):
    setup = Setup(gamma=3, vocabulary=3)
    sampling = replace(SAMPLINGS["penalties"], top_p=1.0, max_new_tokens=4)
    assert distance(emitted_law(setup, sampling, branches), target_law(setup, sampling)) < TOLERANCE
    assert branches.total > 1000


@pytest.mark.medium
@pytest.mark.parametrize("name", ["plain", "top_p"])
def test_an_argmax_draft_under_a_soft_q_breaks_the_law(name, branches, monkeypatch):
    """The negative control: the enumeration sees a fault."""
    from engine.sampling import draw as drafting

    original = drafting.draw

    def argmax_draft(rule, logits, context):
        drawn = original(DraftRule.INDEPENDENT, logits, context)
        return replace(drawn, token=int(np.argmax(drawn.q)))

    monkeypatch.setattr("tests.engine.build.draw", argmax_draft)
    setup = Setup(gamma=2, vocabulary=3)
    sampling = replace(SAMPLINGS[name], max_new_tokens=3)
    assert distance(emitted_law(setup, sampling, branches), target_law(setup, sampling)) > 1e-3


@pytest.mark.medium
def test_resampling_from_p_breaks_the_law(branches, monkeypatch):
    monkeypatch.setattr("engine.verify.chain.residual", lambda p, proposal, node: p)
    setup = Setup(gamma=2, vocabulary=3)
    sampling = SamplingParams(temperature=1.0, max_new_tokens=3)
    assert distance(emitted_law(setup, sampling, branches), target_law(setup, sampling)) > 1e-3


def test_the_chain_rule_declares_itself_lossless():
    assert ChainVerifier.facts.lossless
