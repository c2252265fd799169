"""Transforms against their definitions and against transformers' own processors."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import logsumexp

from engine.core.errors import EngineError, InvalidRequest, ModelError
from engine.core.types import SamplingParams
from engine.sampling import transforms as sampling
from engine.sampling.transforms import (
    UNSORTED,
    gumbel_argmax,
    inverse_cdf,
    log_sum_exp,
    one_hot,
    penalise,
    plain_laws,
    softmax,
    transform,
    truncate,
)

V = 24
EOS = (1,)
SEEDS = range(5)


def row(seed, scale=3.0):
    return scale * np.random.default_rng(seed).standard_normal(V)


def history_of(seed, count=12):
    return np.random.default_rng(100 + seed).integers(0, V, count).tolist()


def theirs(processors, logits, history):
    """Scores after transformers' processors, in float64."""
    chain = transformers.LogitsProcessorList(processors)
    return chain(torch.tensor([history]), torch.tensor(logits)[None].double())[0].numpy()


def law(scores):
    return torch.softmax(torch.tensor(scores), -1).numpy()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("params", "processors"),
    [
        ({"temperature": 0.6}, [transformers.TemperatureLogitsWarper(0.6)]),
        ({"top_k": 5}, [transformers.TopKLogitsWarper(5)]),
        ({"top_p": 0.7}, [transformers.TopPLogitsWarper(0.7)]),
        ({"min_p": 0.1}, [transformers.MinPLogitsWarper(0.1)]),
        ({"repetition_penalty": 1.4}, [transformers.RepetitionPenaltyLogitsProcessor(1.4)]),
        ({"repetition_penalty": 0.7}, [transformers.RepetitionPenaltyLogitsProcessor(0.7)]),
        ({"min_tokens": 9}, [transformers.MinNewTokensLengthLogitsProcessor(4, 9, list(EOS), "cpu")]),
        ({"min_tokens": 8}, [transformers.MinNewTokensLengthLogitsProcessor(4, 8, list(EOS), "cpu")]),
        (
            {"temperature": 1.3, "top_k": 9, "top_p": 0.6, "repetition_penalty": 1.2},
            [
                transformers.RepetitionPenaltyLogitsProcessor(1.2),
                transformers.TemperatureLogitsWarper(1.3),
                transformers.TopKLogitsWarper(9),
                transformers.TopPLogitsWarper(0.6),
            ],
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_equal_to_transformers(seed, params, processors):
    logits, history = row(seed), history_of(seed)
    ours = transform(logits, history, 4, SamplingParams(**{"temperature": 1.0} | params), EOS).p
    np.testing.assert_allclose(ours, law(theirs(processors, logits, history)), atol=1e-12)


@pytest.mark.parametrize("words", [((3,),), ((5, 6),), ((5, 6), (5, 7, 8), (9,)), ((7, 8, 2),)])
@pytest.mark.parametrize("tail", [[5], [5, 7], [9], [7, 8], [8, 7, 8]])
def test_bad_words_equal_to_transformers_within_the_generated_tokens(words, tail):
    logits, history = row(1), [10, 11, 12, 13, 14, *tail]
    processor = transformers.NoBadWordsLogitsProcessor([list(word) for word in words], eos_token_id=torch.tensor([1]))
    ours = transform(logits, history, 3, SamplingParams(temperature=1.0, bad_words=words), EOS).p
    np.testing.assert_allclose(ours, law(theirs([processor], logits, history)), atol=1e-12)


def test_the_beginning_of_a_bad_word_in_the_prompt_does_not_count():
    params = SamplingParams(temperature=1.0, bad_words=((5, 6, 7),))
    assert transform(row(0), [1, 5, 6], 3, params, ()).p[7] > 0
    assert transform(row(0), [1, 5, 6], 2, params, ()).p[7] > 0
    assert transform(row(0), [1, 5, 6], 1, params, ()).p[7] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_presence_and_frequency_follow_their_definition(seed):
    logits, history = row(seed), history_of(seed)
    params = SamplingParams(temperature=1.0, presence_penalty=0.4, frequency_penalty=0.3)
    counts = Counter(history[5:])
    expected = [value - (0.4 + 0.3 * counts[i] if i in counts else 0.0) for i, value in enumerate(logits)]
    np.testing.assert_allclose(transform(logits, history, 5, params, ()).scores, expected, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_truncation_follows_its_definition(seed):
    p = softmax(row(seed))
    params = SamplingParams(temperature=1.0, min_p=0.01, top_k=8, top_p=0.8)
    kept = [i for i in range(V) if p[i] >= 0.01 * max(p)]
    kept = sorted(kept, key=lambda i: -p[i])[:8]
    total, nucleus, mass = sum(p[i] for i in kept), [], 0.0
    for i in kept:
        nucleus.append(i)
        mass += p[i] / total
        if mass >= 0.8:
            break
    expected = np.zeros(V)
    expected[nucleus] = p[nucleus] / sum(p[nucleus])
    np.testing.assert_allclose(truncate(p, params), expected, atol=1e-12)


def test_the_order_is_bias_masks_penalties_temperature():
    logits = np.zeros(V)
    params = SamplingParams(
        temperature=0.5,
        logit_bias=((4, 2.0),),
        bad_words=((7,),),
        min_tokens=3,
        stop_token_ids=(8,),
        repetition_penalty=2.0,
        presence_penalty=0.25,
        frequency_penalty=0.5,
    )
    scores = transform(logits, [4, 9, 9], 1, params, EOS).scores
    assert scores[4] == 1.0  # biased, then divided by the penalty; it is a prompt token, so nothing is subtracted
    assert scores[9] == -0.25 - 2 * 0.5
    assert [scores[i] for i in (1, 7, 8)] == [-math.inf] * 3
    assert scores[0] == 0.0


@pytest.mark.parametrize(("length", "blocked"), [(3, True), (4, True), (5, False)])
@pytest.mark.parametrize("ignore_eos", [True, False])
def test_min_tokens_holds_back_what_would_end_the_generation(length, blocked, ignore_eos):
    params = SamplingParams(temperature=1.0, min_tokens=3, stop_token_ids=(8,), ignore_eos=ignore_eos)
    p = transform(row(2), [0] * length, 2, params, EOS).p
    assert (p[8] == 0) == blocked
    # an end token that ends nothing needs no mask
    assert (p[1] == 0) == (blocked and not ignore_eos)


def test_a_mask_beats_a_bias():
    params = SamplingParams(temperature=1.0, bad_words=((7,),), logit_bias=((7, 100.0),))
    assert transform(row(0), [0], 1, params, ()).p[7] == 0


def test_ties_at_a_threshold_are_kept_and_argmax_takes_the_lowest():
    logits = np.array([1.0, 3.0, 3.0, 3.0, 0.0])
    kept = transform(logits, [0], 1, SamplingParams(temperature=1.0, top_k=2), ()).p
    assert np.flatnonzero(kept).tolist() == [1, 2, 3]
    nucleus = transform(logits, [0], 1, SamplingParams(temperature=1.0, top_p=0.5), ()).p
    assert np.flatnonzero(nucleus).tolist() == [1, 2]
    assert np.flatnonzero(transform(logits, [0], 1, SamplingParams(), ()).p).tolist() == [1]


@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("mass", [1e-9, 0.3, 0.95, 1.0 - 1e-12])
def test_the_nucleus_of_a_large_vocabulary_is_that_of_the_sorted_one(scale, mass):
    # rounded, so that many probabilities are equal
    weights = np.exp(scale * np.random.default_rng(5).normal(size=UNSORTED + 500).round(1))
    given = weights / weights.sum()
    p = given / given.sum()
    order = np.argsort(-p, kind="stable")
    kept = order[np.cumsum(p[order]) - p[order] < mass]
    expected = np.zeros(len(p))
    expected[kept] = p[kept]
    assert truncate(given, SamplingParams(top_p=mass)).tobytes() == (expected / expected.sum()).tobytes()


def test_a_nucleus_that_holds_the_mass_exactly_takes_no_further_token():
    p = np.array([0.25, 0.5, 0.25])
    assert truncate(p, SamplingParams(top_p=0.5)).tolist() == [0.0, 1.0, 0.0]
    assert np.flatnonzero(truncate(p, SamplingParams(top_p=0.75))).tolist() == [0, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_any_token_left_is_an_error(temperature):
    params = SamplingParams(temperature=temperature, bad_words=tuple((i,) for i in range(V)))
    with pytest.raises(InvalidRequest, match="every token is masked"):
        transform(row(0), [0], 1, params, ())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_logit_that_is_no_number_is_an_error_of_its_own(temperature, value):
    logits = row(0)
    logits[3] = value
    with pytest.raises(EngineError, match="not finite"):
        transform(logits, [0], 1, SamplingParams(temperature=temperature), ())


def test_logits_are_not_changed():
    logits = row(0)
    before = logits.copy()
    transform(logits, [0, 1], 1, SamplingParams(temperature=0.7, repetition_penalty=2.0, bad_words=((3,),)), ())
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("temperature", [1e-300, 1e-12, 1e12])
def test_extreme_temperatures_stay_distributions(temperature):
    p = transform(row(0), [0], 1, SamplingParams(temperature=temperature), ()).p
    assert math.isclose(p.sum(), 1.0)
    expected = one_hot(int(np.argmax(row(0))), V) if temperature < 1 else np.full(V, 1 / V)
    np.testing.assert_allclose(p, expected, atol=1e-9)


def test_huge_logits_do_not_overflow():
    assert softmax(np.array([1e4, 1e4, -1e4])).tolist() == [0.5, 0.5, 0.0]


scores = arrays(np.float64, st.integers(2, 12), elements=st.floats(-30, 30))
truncations = st.builds(
    SamplingParams,
    temperature=st.floats(0.05, 5.0),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 0.9),
)


@pytest.mark.medium
@settings(max_examples=150, deadline=None, derandomize=True)
@given(scores, truncations)
def test_a_truncated_row_is_a_distribution_on_the_most_likely_tokens(logits, params):
    whole = softmax(logits / params.temperature)
    p = transform(logits, [0], 1, params, ()).p
    assert math.isclose(p.sum(), 1.0, abs_tol=1e-12)
    assert np.all(p >= 0)
    support = p > 0
    assert not np.any(support & (whole == 0))
    if not support.all():
        assert whole[support].min() >= whole[~support].max()
    assert p[int(np.argmax(whole))] > 0
    # what is kept keeps its proportions
    np.testing.assert_allclose(p[support], whole[support] / whole[support].sum(), rtol=1e-9)


@pytest.mark.medium
@settings(max_examples=80, deadline=None, derandomize=True)
@given(scores, st.integers(1, 12), st.floats(0.01, 0.99))
def test_a_tighter_setting_never_widens_the_support(logits, k, mass):
    p = softmax(logits)
    for looser, tighter in (
        (SamplingParams(temperature=1.0, top_k=k + 1), SamplingParams(temperature=1.0, top_k=k)),
        (SamplingParams(temperature=1.0, top_p=mass), SamplingParams(temperature=1.0, top_p=mass / 2)),
        (SamplingParams(temperature=1.0, min_p=mass / 2), SamplingParams(temperature=1.0, min_p=mass)),
    ):
        assert not np.any((truncate(p, tighter) > 0) & (truncate(p, looser) == 0))


@pytest.mark.medium
@settings(max_examples=80, deadline=None, derandomize=True)
@given(scores, st.floats(-50, 50))
def test_a_constant_added_to_all_logits_changes_nothing(logits, shift):
    params = SamplingParams(temperature=0.8)
    np.testing.assert_allclose(
        transform(logits, [0], 1, params, ()).p, transform(logits + shift, [0], 1, params, ()).p, atol=1e-9
    )


LAST = math.nextafter(1.0, 0.0)


@pytest.mark.parametrize(
    ("weights", "u", "token"),
    [
        ([0.2, 0.3, 0.5], 0.0, 0),
        ([0.2, 0.3, 0.5], 0.2, 1),
        ([0.2, 0.3, 0.5], math.nextafter(0.2, 0.0), 0),
        ([0.2, 0.3, 0.5], LAST, 2),
        ([0.0, 0.0, 1.0, 0.0], 0.0, 2),
        ([0.0, 0.0, 1.0, 0.0], LAST, 2),
        ([0.5, 0.0, 0.5], 0.5, 2),
        ([4.0, 0.0, 12.0], 0.249, 0),
        ([4.0, 0.0, 12.0], 0.25, 2),
        ([1e-300, 0.0], LAST, 0),
        ([0.1] * 10 + [0.0], LAST, 9),
        ([1.0], 0.0, 0),
    ],
)
def test_inverse_cdf_at_its_edges(weights, u, token):
    assert inverse_cdf(np.array(weights), u) == token


@pytest.mark.medium
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    arrays(np.float64, st.integers(1, 9), elements=st.sampled_from([0.0, 1e-17, 0.1, 1 / 3, 2.0])).filter(np.any),
    st.floats(0, LAST),
)
def test_inverse_cdf_never_picks_a_token_without_weight(weights, u):
    assert weights[inverse_cdf(weights, u)] > 0


def test_inverse_cdf_and_gumbel_draw_from_p():
    p, n = np.array([0.5, 0.0, 0.2, 0.3]), 20_000
    rng = np.random.default_rng(0)
    grid = np.bincount([inverse_cdf(p, (i + 0.5) / n) for i in range(n)], minlength=4) / n
    np.testing.assert_allclose(grid, p, atol=1e-4)
    noise = -np.log(-np.log(rng.random((n, 4))))
    drawn = np.bincount([gumbel_argmax(p, each) for each in noise], minlength=4)
    assert drawn[1] == 0
    expected = n * p[[0, 2, 3]]
    assert np.sum((drawn[[0, 2, 3]] - expected) ** 2 / expected) < 13.8  # chi-square, 2 degrees, 0.1 %


def test_penalise_works_in_place_on_the_row_it_is_given():
    scores = np.zeros(V)
    assert penalise(scores, [0], 1, SamplingParams(logit_bias=((2, 1.0),)), ()) is scores


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.0),
        ("repetition_penalty", 0.0),
        ("min_tokens", -1),
        ("max_new_tokens", 0),
        ("seed", 2**63),
        ("bad_words", ((),)),
        ("stop", ("",)),
    ],
)
def test_values_outside_their_range_are_named(field, value):
    with pytest.raises(InvalidRequest, match=field):
        SamplingParams(**{field: value})


def test_log_sum_exp_is_that_of_scipy_and_takes_masked_entries():
    rows = np.random.default_rng(3).normal(scale=30, size=(5, 40))
    rows[:, ::3] = -np.inf
    assert np.allclose(log_sum_exp(rows), logsumexp(rows, axis=-1), rtol=1e-14, atol=0)
    assert log_sum_exp(rows[:0]).shape == (0,)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.3),
        SamplingParams(temperature=1.7, min_p=0.05),
        SamplingParams(temperature=1.0, top_k=5),
        SamplingParams(temperature=0.9, top_p=0.8),
        SamplingParams(temperature=1.1, min_p=0.01, top_k=9, top_p=0.95),
    ],
)
@pytest.mark.parametrize("vocabulary", [1, 7, 64, 1000])
def test_rows_together_are_the_single_rows_to_the_last_bit(params, vocabulary, monkeypatch):
    monkeypatch.setattr(sampling, "BLOCK", 3000)
    rows = 3.0 * np.random.default_rng(vocabulary).standard_normal((17, vocabulary))
    rows[3] = np.round(rows[3])
    rows[4, 1:] = -np.inf
    for logits in (rows, rows.astype(np.float32), rows[:0]):
        single = [transform(row, [1], 1, params, ()).p for row in logits]
        np.testing.assert_array_equal(plain_laws(logits, params), np.reshape(single, logits.shape))


@pytest.mark.parametrize(("value", "error"), [(np.nan, ModelError), (np.inf, ModelError), (-np.inf, InvalidRequest)])
def test_rows_together_refuse_what_a_single_row_refuses(value, error):
    rows = np.zeros((3, 4))
    rows[1] = value
    with pytest.raises(error):
        plain_laws(rows, SamplingParams(temperature=1.0))
