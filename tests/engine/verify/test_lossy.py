"""Rules that break the law: by how much, exactly, and that they say so."""

import math

import numpy as np
import pytest

from engine import verify
from engine.core.errors import InvalidRequest
from engine.core.types import Proposal, Protocol, QKind, Role, SamplingParams, Tree
from engine.record.trace import decode
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import TargetRows, transform
from tests.engine.build import Setup, draft_script, generate, requests, target_script
from tests.engine.enumeration import PROMPT, TOLERANCE, distance, emitted_law, enumerate_decisions, target_law
from tests.support.tiers import fast_first

LOSSY = (Protocol.TYPICAL, Protocol.THRESHOLD, Protocol.ENSEMBLE, Protocol.SYNTHETIC)
SAMPLED = SamplingParams(temperature=0.9, repetition_penalty=1.3, max_new_tokens=3)


@pytest.fixture
def branches(monkeypatch):
    return enumerate_decisions(monkeypatch)


def setup_of(protocol, proposer="draft_model", **options):
    tree = {"options": {"widths": "2,1"}, "gamma": 4} if proposer == "specinfer" else {"gamma": 2}
    ngram = {"options": {"min_ngram": 1}} if proposer == "ngram" else {}
    return Setup(proposer, protocol, vocabulary=3, verifier_options=options, **tree, **ngram)


BREAKING = [
    setup_of(Protocol.TYPICAL),
    setup_of(Protocol.TYPICAL, "ngram"),
    setup_of(Protocol.TYPICAL, "specinfer"),
    setup_of(Protocol.THRESHOLD, threshold_single=0.3),
    setup_of(Protocol.THRESHOLD, threshold_acc=0.8),
    setup_of(Protocol.THRESHOLD, "specinfer", threshold_acc=0.8),
    setup_of(Protocol.ENSEMBLE),
    setup_of(Protocol.ENSEMBLE, "ngram"),
    setup_of(Protocol.SYNTHETIC),
    setup_of(Protocol.SYNTHETIC, length=1.5),
]
NEUTRAL = [
    # min(1, 99 exp(-H)) is 1 over three tokens, and no p is above it
    setup_of(Protocol.TYPICAL, epsilon=1, delta=99),
    setup_of(Protocol.TYPICAL, "specinfer", epsilon=1, delta=99),
    setup_of(Protocol.THRESHOLD),
    setup_of(Protocol.THRESHOLD, "ngram"),
    setup_of(Protocol.THRESHOLD, "specinfer"),
    setup_of(Protocol.ENSEMBLE, weight=1),
    setup_of(Protocol.ENSEMBLE, "ngram", weight=1),
    setup_of(Protocol.SYNTHETIC, length=1),
]


def name_of(setup):
    return "-".join([setup.protocol, setup.proposer, *(f"{k}={v}" for k, v in setup.verifier_options.items())])


@pytest.mark.medium
@pytest.mark.parametrize("setup", BREAKING, ids=name_of)
def test_a_lossy_rule_breaks_the_law(setup, branches):
    law = emitted_law(setup, SAMPLED, branches)
    assert math.isclose(sum(law.values()), 1.0, abs_tol=TOLERANCE)
    assert distance(law, target_law(setup, SAMPLED)) > 1e-3


@pytest.mark.medium
@pytest.mark.parametrize("setup", NEUTRAL, ids=name_of)
def test_with_neutral_settings_the_law_is_the_target_s(setup, branches):
    law = emitted_law(setup, SAMPLED, branches)
    assert branches.total > 2
    assert distance(law, target_law(setup, SAMPLED)) < TOLERANCE


# each rule's law of the first token, from its definition


def first_rows(setup):
    """p and q [V] of the first token."""
    scripts = (target_script(setup), draft_script(setup))
    return [transform(script(PROMPT), PROMPT, len(PROMPT), SAMPLED, ()).p for script in scripts]


def first_law(setup, branches):
    law = np.zeros(setup.vocabulary)
    for tokens, probability in emitted_law(setup, SAMPLED, branches).items():
        law[tokens[0]] += probability
    return law


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.5, 0.9])
def test_typical_is_the_draft_s_argmax_where_it_passes_and_p_elsewhere(epsilon, branches):
    setup = setup_of(Protocol.TYPICAL, epsilon=epsilon, delta=2.0)
    p, q = first_rows(setup)
    x = int(np.argmax(q))
    passes = p[x] > min(epsilon, 2.0 * math.exp(np.sum(p * np.log(p))))
    np.testing.assert_allclose(first_law(setup, branches), np.eye(3)[x] if passes else p, atol=TOLERANCE)


def test_both_outcomes_of_typical_were_seen():
    p, q = first_rows(setup_of(Protocol.TYPICAL))
    reached = [p[int(np.argmax(q))] > min(each, 2.0 * math.exp(np.sum(p * np.log(p)))) for each in (0.0, 0.9)]
    assert reached == [True, False]


@pytest.mark.parametrize("single", [0.0, 0.9])
@pytest.mark.parametrize("acc", [0.0, 0.5, 0.8, 1.0])
def test_threshold_accepts_with_p_over_acc_and_always_above_single(single, acc, branches):
    setup = setup_of(Protocol.THRESHOLD, threshold_single=single, threshold_acc=acc)
    p, q = first_rows(setup)
    x = int(np.argmax(q))
    accept = 1.0 if p[x] >= single or p[x] >= acc else p[x] / acc
    expected = p * (1 - accept) / (1 - p[x])
    expected[x] = accept
    np.testing.assert_allclose(first_law(setup, branches), expected, atol=TOLERANCE)


@pytest.mark.medium
@pytest.mark.parametrize("weight", [0.0, 0.4, 0.9])
def test_ensemble_is_the_mixture(weight, branches):
    setup = setup_of(Protocol.ENSEMBLE, weight=weight)
    p, q = first_rows(setup)
    np.testing.assert_allclose(first_law(setup, branches), weight * p + (1 - weight) * q, atol=TOLERANCE)


@pytest.mark.parametrize("length", fast_first([1.25, 1.0, 2.0, 9.0]))
@pytest.mark.slow
def test_synthetic_is_the_mixture_by_its_rate(length, branches):
    setup = setup_of(Protocol.SYNTHETIC, length=length)
    p, q = first_rows(setup)
    rate = min(1.0, length - 1.0)
    np.testing.assert_allclose(first_law(setup, branches), (1 - rate) * p + rate * q, atol=TOLERANCE)


@pytest.mark.parametrize(("length", "gamma"), fast_first([(2.6, 4), (1.0, 4), (3.0, 4), (4.25, 6), (9.0, 3)]))
@pytest.mark.slow
def test_synthetic_keeps_to_its_schedule(length, gamma):
    setup = Setup(protocol=Protocol.SYNTHETIC, gamma=gamma, verifier_options={"length": length})
    wanted = requests(40, SamplingParams(temperature=1.0, max_new_tokens=200, seed=5))
    found = [decode(each.trace) for each in generate(setup, wanted).values()]
    # the last step of a request is cut
    emitted = np.concatenate([each.n_emitted[:-1] for each in found])
    reached = min(length, gamma + 1.0)
    assert set(emitted) == {math.floor(reached), math.ceil(reached)}
    assert abs(emitted.mean() - reached) < 4 * 0.5 / math.sqrt(len(emitted))


# one verdict at a time


def rows_of(probabilities, tree):
    logits = np.log(np.asarray(probabilities, dtype=np.float64))
    return TargetRows(logits, tree, [0, 1], 2, SamplingParams(temperature=1.0), ())


TREE = Tree((0, 1, 2, 0, 1, 2), (-1, -1, 0, 1, 1, 3))
"""Two branches: 0-2, and 1-(0-2 or 1)."""


def test_typical_takes_the_longest_path_and_not_the_likeliest():
    p = [[0.8, 0.15, 0.05]] * 7
    proposal = Proposal(TREE, QKind.ONE_HOT)
    got = verify.load(Protocol.TYPICAL, {"epsilon": 0.01}).verify(proposal, rows_of(p, TREE), Randomness(1, 2))
    assert [each.token for each in got.emitted[:-1]] == [1, 0, 2]
    assert [each.node for each in got.examined if each.accepted] == [1, 3, 5]
    assert [each.node for each in got.examined] == [0, 1, 2, 3, 4, 5]
    assert [each.role for each in got.emitted] == [Role.ACCEPTED] * 3 + [Role.BONUS]


def test_typical_takes_the_likelier_of_equally_long_paths_then_the_first():
    tree = Tree((0, 1, 2), (-1, -1, -1))
    for row, token in (([0.3, 0.6, 0.1], 1), ([0.45, 0.45, 0.1], 0)):
        got = verify.load(Protocol.TYPICAL).verify(
            Proposal(tree, QKind.ONE_HOT), rows_of([row] * 4, tree), Randomness(1, 2)
        )
        assert got.emitted[0].token == token


@pytest.mark.parametrize(("delta", "kept"), [(0.3, True), (0.6, False)])
def test_typical_lowers_its_threshold_with_the_entropy(delta, kept):
    tree = Tree.chain((2,))
    # H is 1.03 nats and exp(-H) 0.357: thresholds of 0.107 and 0.214
    rows = rows_of([[0.5, 0.3, 0.2]] * 2, tree)
    verifier = verify.load(Protocol.TYPICAL, {"epsilon": 1, "delta": delta})
    got = verifier.verify(Proposal(tree, QKind.ONE_HOT), rows, Randomness(1, 2))
    assert got.examined[0].accepted is kept


def test_typical_looks_at_no_node_below_one_that_fails():
    p = [[0.98, 0.01, 0.01]] + [[0.3, 0.3, 0.4]] * 6
    got = verify.load(Protocol.TYPICAL).verify(Proposal(TREE, QKind.ONE_HOT), rows_of(p, TREE), Randomness(1, 2))
    assert [(each.node, each.accepted) for each in got.examined] == [(0, True), (1, False), (2, True)]


def test_a_threshold_counts_a_token_that_is_offered_twice_once():
    tree = Tree((0, 0, 1), (-1, -1, -1))
    verifier = verify.load(Protocol.THRESHOLD)
    kept = []
    for stream in range(200):
        got = verifier.verify(
            Proposal(tree, QKind.ONE_HOT), rows_of([[0.3, 0.2, 0.5]] * 4, tree), Randomness(1, stream)
        )
        u = got.examined[0].uniform
        assert {each.uniform for each in got.examined} == {u}
        kept.append(got.emitted[0].token if got.n_accepted else 2)
        assert kept[-1] == (0 if u < 0.3 else 1 if u < 0.5 else 2)
        assert math.isnan(got.residual_mass) or got.residual_mass == pytest.approx(0.5)
    assert set(kept) == {0, 1, 2}


class Noted(Randomness):
    """Randomness that remembers what it was asked for."""

    def __init__(self):
        super().__init__(3, 4)
        self.asked = []

    def uniforms(self, position, purpose, count, index=0):
        self.asked.append((position, purpose, index))
        return super().uniforms(position, purpose, count, index)


@pytest.mark.parametrize("protocol", LOSSY)
def test_numbers_come_from_the_verifier_s_streams_and_none_twice(protocol):
    tree = Tree.chain((0, 1, 2))
    q = np.full((3, 3), 1 / 3)
    seen = set()
    for peak in (0.001, 0.2, 0.9):
        randomness = Noted()
        p = [[peak, (1 - peak) * 0.4, (1 - peak) * 0.6]] * 4
        verify.load(protocol).verify(Proposal(tree, QKind.FULL, q), rows_of(p, tree), randomness)
        assert len(set(randomness.asked)) == len(randomness.asked)
        seen |= {purpose for _, purpose, _ in randomness.asked}
    assert seen <= {Purpose.ACCEPT, Purpose.RESIDUAL, Purpose.BONUS}


@pytest.mark.parametrize("protocol", LOSSY)
def test_without_a_draft_the_token_is_plain_and_from_p(protocol):
    verdict = verify.load(protocol).verify(Proposal(), rows_of([[0.2, 0.3, 0.5]], Tree()), Randomness(1, 2))
    (emitted,) = verdict.emitted
    assert (emitted.role, emitted.row, verdict.examined) == (Role.PLAIN, 0, ())
    assert emitted.p == pytest.approx([0.2, 0.3, 0.5][emitted.token])


@pytest.mark.parametrize("protocol", [Protocol.ENSEMBLE, Protocol.SYNTHETIC])
def test_a_tree_is_refused_by_rules_for_chains(protocol):
    proposal = Proposal(TREE, QKind.ONE_HOT)
    with pytest.raises(InvalidRequest, match="cannot verify a branching tree"):
        verify.load(protocol).verify(proposal, rows_of([[0.2, 0.3, 0.5]] * 7, TREE), Randomness(1, 2))


def test_ensemble_needs_q():
    tree = Tree.chain((0,))
    with pytest.raises(InvalidRequest, match="the ensemble rule needs q"):
        verify.load(Protocol.ENSEMBLE).verify(Proposal(tree), rows_of([[0.2, 0.3, 0.5]] * 2, tree), Randomness(1, 2))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("protocol", "greedy"),
    [(Protocol.TYPICAL, True), (Protocol.THRESHOLD, True), (Protocol.ENSEMBLE, False), (Protocol.SYNTHETIC, False)],
)
def test_at_temperature_zero_two_of_them_are_greedy(protocol, greedy):
    wanted = requests(6, SamplingParams(max_new_tokens=40))
    got = generate(Setup(protocol=protocol, gamma=4, likeness=0.3), wanted)
    plain = generate(Setup(None, Protocol.GREEDY), wanted)
    assert ({n: each.tokens for n, each in got.items()} == {n: each.tokens for n, each in plain.items()}) is greedy


# what they declare


@pytest.mark.parametrize("protocol", LOSSY)
def test_a_lossy_rule_says_so_in_its_facts_and_in_the_record(protocol):
    facts = verify.load(protocol).facts
    assert not facts.lossless
    assert facts.options.keys() == verify.SETTINGS[protocol].keys()
    got = generate(Setup(protocol=protocol), requests(1, SAMPLED))
    assert {decode(each.trace).header.lossless for each in got.values()} == {False}


def test_all_other_rules_are_lossless_and_have_no_options():
    for protocol in set(Protocol) - set(LOSSY):
        facts = verify.load(protocol).facts
        assert facts.lossless
        assert facts.options == {}
        assert protocol not in verify.SETTINGS


def test_given_options_are_in_the_facts_beside_the_defaults():
    assert verify.load(Protocol.TYPICAL, {"epsilon": 1}).facts.options == {"epsilon": 1.0, "delta": 0.3}


@pytest.mark.parametrize(
    ("protocol", "options", "says"),
    [
        (Protocol.CHAIN, {"epsilon": 0.1}, "verifier chain has no option 'epsilon'; it has: none"),
        (Protocol.TYPICAL, {"weight": 0.1}, "verifier typical has no option 'weight'; it has: delta, epsilon"),
        (Protocol.TYPICAL, {"epsilon": 1.5}, "epsilon must be a number from 0 to 1, not 1.5"),
        (Protocol.THRESHOLD, {"threshold_acc": -0.1}, "threshold_acc must be a number from 0 to 1"),
        (Protocol.ENSEMBLE, {"weight": True}, "weight must be a number"),
        (Protocol.SYNTHETIC, {"length": 0.5}, "length must be a number of at least 1"),
    ],
)
def test_options_that_a_rule_does_not_take_are_refused(protocol, options, says):
    with pytest.raises(InvalidRequest, match=says):
        verify.load(protocol, options)
