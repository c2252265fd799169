"""The law of the emitted tokens, by enumerating every random decision of the real loop.

A uniform number becomes a branch: an acceptance test is taken with probability
min(1, p / q), a draw with its weights. Each leaf is one run of the loop; the
leaves' probabilities add up to the exact law of the first gamma + 1 tokens.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from engine.sampling import transform
from engine.types import DraftRule, Protocol, RecordLevel, Request, SamplingParams
from engine.verify.chain import ChainVerifier

from .build import Setup, make_loop, target_script

TOLERANCE = 1e-12
PROMPT = (0, 1, 0)


class Branches:
    """Depth-first enumeration: `choose` replays a prefix of choices and extends it."""

    def __init__(self):
        self.pending = [[]]
        self.total = 0

    def __iter__(self):
        while self.pending:
            self.taken = self.pending.pop()
            self.at, self.probability = 0, 1.0
            self.total += 1
            yield self

    def choose(self, weights):
        shares = np.asarray(weights, dtype=np.float64)
        shares = shares / shares.sum()
        if self.at == len(self.taken):
            possible = [i for i, share in enumerate(shares) if share > 0]
            self.pending.extend([*self.taken, other] for other in possible[1:])
            self.taken = [*self.taken, possible[0]]
        choice = self.taken[self.at]
        self.at += 1
        self.probability *= shares[choice]
        return choice


class Coin(float):
    """A uniform number that branches when it is compared."""

    def __new__(cls, branches):
        coin = super().__new__(cls, 0.5)
        coin.branches = branches
        return coin

    def __mul__(self, q):
        return _Scaled(self.branches, q)


class _Scaled:
    def __init__(self, branches, q):
        self.branches, self.q = branches, q

    def __lt__(self, p):
        accept = 1.0 if self.q <= p else p / self.q
        return self.branches.choose([1.0 - accept, accept]) == 1


class CoinRandomness:
    def __init__(self, branches):
        self.branches = branches

    def uniform(self, position, purpose, index=0):
        return Coin(self.branches)

    def gumbel(self, position, vocabulary):
        return np.zeros(vocabulary)


@pytest.fixture
def branches(monkeypatch):
    """Every random decision of the loop goes through one enumerator."""
    found = Branches()
    monkeypatch.setattr("engine.loop.Randomness", lambda seed, stream: CoinRandomness(found))
    for module in ("engine.verify.chain", "engine.drafting"):
        monkeypatch.setattr(f"{module}.inverse_cdf", lambda weights, u: found.choose(weights))
    monkeypatch.setattr("engine.verify.gumbel.gumbel_argmax", lambda p, noise: found.choose(p))
    # under any coupling the draft is some token with q > 0: all of them are tried
    monkeypatch.setattr("engine.drafting.gumbel_argmax", lambda q, noise: found.choose(q))
    return found


def emitted_law(setup, sampling, branches):
    law = {}
    for branch in branches:
        (generation,) = make_loop(setup, capacity=32).run([Request("r", PROMPT, sampling)])
        law[generation.tokens] = law.get(generation.tokens, 0.0) + branch.probability
    return law


def target_law(setup, sampling):
    law = {}
    script = target_script(setup)
    for tokens in itertools.product(range(setup.vocabulary), repeat=sampling.max_new_tokens):
        history, probability = list(PROMPT), 1.0
        for token in tokens:
            row = transform(script(tuple(history)), history, len(PROMPT), sampling, ())
            probability *= row.p[token]
            history.append(token)
        if probability > 0:
            law[tokens] = probability
    return law


def distance(first, second):
    return max(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in first.keys() | second.keys())


SAMPLINGS = {
    "plain": SamplingParams(temperature=1.0),
    "temperature": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(temperature=1.2, top_k=2),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8),
    "penalties": SamplingParams(
        temperature=0.9, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.7, top_p=0.95
    ),
}
SIZES = [(2, 3), (3, 2), (8, 1)]


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize(("vocabulary", "gamma"), SIZES)
@pytest.mark.parametrize(
    ("proposer", "protocol"),
    [("draft_model", Protocol.CHAIN), ("ngram", Protocol.CHAIN), ("draft_model", Protocol.GUMBEL)],
    ids=["chain-soft", "chain-one-hot", "gumbel"],
)
def test_the_law_of_the_first_tokens_is_the_target_s(name, vocabulary, gamma, proposer, protocol, branches):
    options = {"min_ngram": 1} if proposer == "ngram" else {}
    setup = Setup(
        proposer=proposer,
        protocol=protocol,
        gamma=gamma,
        vocabulary=vocabulary,
        options=options,
        level=RecordLevel.TOKENS,
    )
    sampling = replace(SAMPLINGS[name], max_new_tokens=gamma + 1)
    law = emitted_law(setup, sampling, branches)
    assert branches.total > 2
    assert math.isclose(sum(law.values()), 1.0, abs_tol=TOLERANCE)
    assert distance(law, target_law(setup, sampling)) < TOLERANCE


def test_a_longer_draft_over_more_tokens(branches):
    setup = Setup(gamma=3, vocabulary=3, level=RecordLevel.TOKENS)
    sampling = replace(SAMPLINGS["penalties"], top_p=1.0, max_new_tokens=4)
    assert distance(emitted_law(setup, sampling, branches), target_law(setup, sampling)) < TOLERANCE
    assert branches.total > 1000


@pytest.mark.parametrize("name", ["plain", "top_p"])
def test_an_argmax_draft_under_a_soft_q_breaks_the_law(name, branches, monkeypatch):
    """The negative control: the enumeration sees a fault."""
    from engine import drafting

    original = drafting.draw

    def argmax_draft(rule, logits, context):
        drawn = original(DraftRule.INDEPENDENT, logits, context)
        return replace(drawn, token=int(np.argmax(drawn.q)))

    monkeypatch.setattr("tests.engine.build.draw", argmax_draft)
    setup = Setup(gamma=2, vocabulary=3, level=RecordLevel.TOKENS)
    sampling = replace(SAMPLINGS[name], max_new_tokens=3)
    assert distance(emitted_law(setup, sampling, branches), target_law(setup, sampling)) > 1e-3


def test_resampling_from_p_breaks_the_law(branches, monkeypatch):
    monkeypatch.setattr("engine.verify.chain.residual", lambda p, proposal, node: p)
    setup = Setup(gamma=2, vocabulary=3, level=RecordLevel.TOKENS)
    sampling = SamplingParams(temperature=1.0, max_new_tokens=3)
    assert distance(emitted_law(setup, sampling, branches), target_law(setup, sampling)) > 1e-3


def test_the_chain_rule_declares_itself_lossless():
    assert ChainVerifier.facts.lossless
