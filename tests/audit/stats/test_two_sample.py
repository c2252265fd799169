from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binom, chi2_contingency

from audit.stats.two_sample import (
    PAD,
    TwoSampleData,
    bigram_test,
    first_token_test,
    hamming_kernel,
    hamming_test,
    padded,
    pooled,
    spectrum_kernel,
    spectrum_test,
)
from tests.support.tiers import fast_first

TESTS = (hamming_test, spectrum_test, bigram_test, first_token_test)
VOCABULARY, LENGTH = 6, 8


def chain(prompt, leak=0.0):
    """A transition matrix and a first law; `leak` of it goes to another chain."""
    rng, other = np.random.default_rng(100 + prompt), np.random.default_rng(900 + prompt)
    laws = [each.dirichlet(np.full(VOCABULARY, 0.5), size=VOCABULARY + 1) for each in (rng, other)]
    return (1 - leak) * laws[0] + leak * laws[1]


def respond(rng, prompt, leak=0.0):
    law, tokens = chain(prompt, leak), []
    for _ in range(int(rng.integers(LENGTH // 2, LENGTH + 1))):
        row = law[tokens[-1] if tokens else VOCABULARY]
        tokens.append(int(rng.choice(VOCABULARY, p=row)))
    return tokens


def arm(rng, sizes, leak=0.0):
    prompts = [prompt for prompt, size in enumerate(sizes) for _ in range(size)]
    return [respond(rng, prompt, leak) for prompt in prompts], prompts


def sample(rng, first_sizes, second_sizes, leak=0.0):
    return pooled(*arm(rng, first_sizes), *arm(rng, second_sizes, leak))


def mmd_by_pairs(sample, kernel):
    """The estimate written out pair by pair."""
    sums, pairs = np.zeros(3), np.zeros(3)
    for i in range(len(sample.prompt)):
        for j in range(len(sample.prompt)):
            if i != j and sample.prompt[i] == sample.prompt[j]:
                kind = int(sample.second[i]) + int(sample.second[j])
                sums[kind] += kernel[i, j]
                pairs[kind] += 1
    return sums[0] / pairs[0] - 2 * sums[1] / pairs[1] + sums[2] / pairs[2]


@pytest.mark.parametrize("test", [hamming_test, spectrum_test])
def test_mmd_is_the_mean_over_pairs_of_a_prompt(test):
    rng = np.random.default_rng(1)
    drawn = sample(rng, (5, 3, 4), (2, 6, 4), 0.5)
    kernel = hamming_kernel(drawn.tokens) if test is hamming_test else spectrum_kernel(drawn.tokens, 5)
    assert test(drawn, rng, 9).statistic == pytest.approx(mmd_by_pairs(drawn, kernel), abs=1e-12)


def test_spectrum_kernel_by_hand():
    # "aab" has a, a, b, aa, ab; "ab" has a, b, ab: 2 + 1 + 1 shared, norms 7 and 3
    kernel = spectrum_kernel(padded([[0, 0, 1], [0, 1], []]), 2)
    assert kernel[0, 1] == pytest.approx(4 / np.sqrt(7 * 3))
    assert np.diagonal(kernel).tolist() == pytest.approx([1.0, 1.0, 0.0])


def test_hamming_kernel_by_hand():
    assert hamming_kernel(padded([[1, 2, 3, 4], [1, 5, 3], [1]])).tolist() == [
        [1.0, 0.5, 0.25],
        [0.5, 1.0, 0.5],
        [0.25, 0.5, 1.0],
    ]


def test_bigram_statistic_is_scipys_chi_square_summed_over_prompts():
    rng = np.random.default_rng(2)
    drawn = sample(rng, (6, 9), (8, 5))
    expected = 0.0
    for prompt in (0, 1):
        table = np.zeros((2, VOCABULARY**2))
        for row, own, second in zip(drawn.tokens, drawn.prompt, drawn.second, strict=True):
            kept = row[row != PAD]
            if own == prompt:
                np.add.at(table[int(second)], kept[:-1] * VOCABULARY + kept[1:], 1)
        expected += chi2_contingency(table[:, table.any(axis=0)], correction=False).statistic
    assert bigram_test(drawn, rng, 9).statistic == pytest.approx(expected, rel=1e-10)


def test_first_token_distance_by_hand():
    drawn = pooled([[0], [0], [1]], [7, 7, 7], [[1], [2]], [7, 7])
    assert first_token_test(drawn, np.random.default_rng(0), 9).statistic == pytest.approx(2 / 3 + 1 / 6 + 1 / 2)


def test_p_is_that_of_all_relabellings_within_prompts():
    # two prompts of 2 + 2: 36 relabellings, which 20 000 random ones approach
    rng = np.random.default_rng(4)
    drawn = sample(rng, (2, 2), (2, 2), 0.9)
    values = []
    for first in combinations(range(4), 2):
        for second in combinations(range(4), 2):
            label = np.zeros(8, dtype=bool)
            for prompt, chosen in enumerate((first, second)):
                label[np.flatnonzero(drawn.prompt == prompt)[list(chosen)]] = True
            values.append(hamming_test(TwoSampleData(drawn.tokens, drawn.prompt, label), rng, 1).statistic)
    found = hamming_test(drawn, rng, 20_000)
    exact = np.mean(np.array(values) >= found.statistic - 1e-9)
    assert found.p == pytest.approx(exact, abs=4 * 0.5 / np.sqrt(20_000))


@pytest.mark.parametrize("test", fast_first(TESTS))
@pytest.mark.slow
def test_false_alarms_are_nominal_for_unequal_arms(test):
    runs, false = 300, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        false += test(sample(rng, (2, 6, 4), (6, 2, 4)), rng, 99).p <= 0.05
    # discrete statistics make it conservative; the upper limit holds with 1e-3
    assert 0 < false <= binom.ppf(0.999, runs, 0.05)


# the Hamming kernel compares places, not successions: it needs more responses for the same change
@pytest.mark.parametrize(("test", "size"), fast_first([(hamming_test, 90), (spectrum_test, 30), (bigram_test, 30)]))
@pytest.mark.slow
def test_a_changed_chain_is_found(test, size):
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found += test(sample(rng, (size, size), (size, size), 0.6), rng, 199).p <= 0.01
    assert found >= 18


def test_a_changed_first_token_is_found():
    rng = np.random.default_rng(5)
    assert first_token_test(sample(rng, (60, 60), (60, 60), 0.8), rng).p <= 0.01


def unstratified_p(drawn, rng, permutations=99):
    """What happens when labels are permuted across prompts."""
    observed = hamming_test(drawn, rng, 1).statistic
    values = [
        hamming_test(TwoSampleData(drawn.tokens, drawn.prompt, rng.permutation(drawn.second)), rng, 1).statistic
        for _ in range(permutations)
    ]
    return (1 + np.sum(np.array(values) >= observed)) / (1 + permutations)


@pytest.mark.slow
def test_permuting_across_prompts_rejects_equal_arms():
    # one arm answers the easy prompt more often, the other the hard one: same laws within prompts
    easy, hard = [[0, 0, 0, 0]], np.random.default_rng(0)
    stratified, across, runs = 0, 0, 60
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        noise = hard.integers(0, 9, size=(24, 4)).tolist()
        drawn = pooled(easy * 2 + noise[:20], [0] * 2 + [1] * 20, easy * 10 + noise[20:], [0] * 10 + [1] * 4)
        stratified += hamming_test(drawn, rng, 99).p <= 0.05
        across += unstratified_p(drawn, rng) <= 0.05
    assert stratified <= binom.ppf(0.999, runs, 0.05)
    assert across > 0.9 * runs


@pytest.mark.parametrize("test", TESTS)
def test_p_is_never_zero(test):
    drawn = pooled([[1, 1, 1]] * 40, [0] * 40, [[2, 2, 2]] * 40, [0] * 40)
    assert test(drawn, np.random.default_rng(0), 99).p == pytest.approx(1 / 100)


@pytest.mark.parametrize("test", TESTS)
def test_equal_texts_and_empty_ones_are_no_evidence(test):
    rng = np.random.default_rng(0)
    assert test(pooled([[1, 2]] * 3, [0] * 3, [[1, 2]] * 3, [0] * 3), rng, 99).p == 1.0
    assert test(pooled([[]] * 3, [0] * 3, [[]] * 3, [0] * 3), rng, 99).p == 1.0
    assert test(pooled([], [], [], []), rng, 99).p == 1.0


def test_one_response_per_prompt_and_arm_cannot_show_anything_in_mmd():
    rng = np.random.default_rng(0)
    assert hamming_test(pooled([[1], [2]], [0, 1], [[3], [4]], [0, 1]), rng, 99).p == 1.0


def test_prompts_of_one_arm_are_left_out():
    drawn = pooled([[1], [2]], [0, 1], [[3]], [1])
    assert drawn.prompt.tolist() == [1, 1]
    with pytest.raises(ValueError, match="number of its prompt"):
        pooled([[1]], [], [], [])
