"""Samples of a prompt that were not drawn apart, over laws that are known."""

import numpy as np
import pytest

from audit.checks.token_law.rows import SharedBeginnings

PROMPTS, SAMPLES, LENGTH = 12, 3, 24
ALPHA = 0.01


def p_value(seed, repeated=0.0, sharp=1.0, from_token=0):
    """Of samples of a random law; a share of them repeats an earlier sample, from a place on only its beginning."""
    rng = np.random.default_rng(seed)
    found = SharedBeginnings()
    for prompt in range(PROMPTS):
        laws = rng.dirichlet(np.full(8, 1.0 / sharp), size=LENGTH)
        first = None
        for _ in range(SAMPLES):
            tokens = np.array([rng.choice(8, p=law) for law in laws])
            if first is not None and rng.random() < repeated:
                tokens = np.concatenate([first[: from_token or LENGTH], tokens[from_token or LENGTH :]])
            first = tokens if first is None else first
            found.add(f"case-{prompt}", tokens.tolist(), laws[np.arange(LENGTH), tokens])
    (test,) = found.tested()
    assert test.n == PROMPTS * (SAMPLES - 1)
    return test


@pytest.mark.medium
@pytest.mark.parametrize("sharp", [1.0, 4.0, 20.0])
def test_samples_that_are_drawn_apart_are_called_alike_at_most_at_the_nominal_rate(sharp):
    """400 runs at 1 %: more than 11 happen with a chance below 1/1000 if the rate is nominal."""
    assert sum(p_value(seed, sharp=sharp).p < ALPHA for seed in range(400)) <= 11


@pytest.mark.parametrize("repeated", [1.0, 0.3])
def test_samples_that_repeat_are_found(repeated):
    found = [p_value(seed, repeated) for seed in range(20)]
    assert sum(test.p < 1e-6 and 0 < test.effect <= 1 for test in found) >= 19


def test_a_shared_beginning_is_found_without_an_equal_answer():
    found = p_value(1, 1.0, from_token=8)
    assert found.p < 1e-6
    assert found.effect == 0


def test_single_samples_and_other_prompts_are_not_compared():
    found = SharedBeginnings()
    for case in ("a", "b"):
        found.add(case, (1, 2, 3), np.full(3, 0.1))
    assert found.tested() == []


def test_a_token_at_an_edge_counts_as_certain():
    found = SharedBeginnings()
    for _ in range(2):
        found.add("a", (1, 2), np.zeros(2))
    assert found.tested()[0].p == 1.0
