"""The same bits whatever the shape of a forward, and how far they are from float64."""

import pytest
import torch

from engine.core.errors import ModelError
from engine.models.decoder.lean import LeanModel
from engine.models.loading import load_model
from engine.models.numerics import load
from engine.models.numerics.exact import LARGEST_CONTEXT, ExactNumerics
from engine.models.numerics.fast import FastNumerics
from engine.models.numerics.interface import HeadSizes, Invariance
from tests.support.tiers import fast_first

from .exact_models import by_batch, by_chains, by_trees, make, some_tokens

KINDS = ("llama", "qwen2", "qwen3")
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def bundled():
    return load_model("bundled:target").model


def same_bits(a, b):
    """Also a zero's sign counts."""
    kind = torch.int16 if a.dtype is torch.bfloat16 else torch.int32
    return torch.equal(a.view(kind), b.view(kind))


def test_is_the_mode_that_promises_everything():
    mode = load("exact")
    assert isinstance(mode, ExactNumerics)
    assert (mode.name, mode.promises) == ("exact", Invariance.EVERYWHERE)


@pytest.mark.medium
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", fast_first(KINDS))
def test_chains_trees_and_capacities_give_the_same_bits(kind, dtype):
    model = make(kind, dtype, ExactNumerics())
    tokens = some_tokens(61, model.vocabulary)
    expected = by_chains(model, tokens, 1)
    assert expected.dtype is dtype
    assert expected.isfinite().all()
    for width in (2, 5, 8, 61):
        assert same_bits(by_chains(model, tokens, width), expected), width
    assert same_bits(by_chains(model, tokens, 7, capacity=400), expected)
    trees = by_trees(model, tokens)
    assert len(trees) == 61
    assert same_bits(trees, expected)


@pytest.mark.medium
@pytest.mark.parametrize("dtype", fast_first(DTYPES))
@pytest.mark.parametrize("kind", fast_first(KINDS))
def test_ragged_batches_give_the_same_bits(kind, dtype):
    model = make(kind, dtype, ExactNumerics())
    rows = [some_tokens(20 + 5 * i, model.vocabulary, seed=i) for i in range(8)]
    for tokens, answer in zip(rows, by_batch(model, rows, 4), strict=True):
        assert same_bits(answer, by_chains(model, tokens, 1))


def test_the_comparison_can_fail():
    model = make("llama", torch.float32, FastNumerics())
    tokens = some_tokens(61, model.vocabulary)
    assert not same_bits(by_chains(model, tokens, 8), by_chains(model, tokens, 1))


@pytest.mark.medium
def test_two_threads_give_the_same_bits(bundled):
    model = LeanModel(bundled.config, bundled.weights, numerics=ExactNumerics())
    tokens = some_tokens(96, model.vocabulary)
    alone = by_chains(model, tokens, 48)
    torch.set_num_threads(2)
    try:
        assert same_bits(by_chains(model, tokens, 48), alone)
        assert same_bits(by_chains(model, tokens, 96), alone)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("kind", KINDS)
def test_is_about_as_accurate_as_fast(kind):
    tokens = some_tokens(40, 160)
    reference = by_chains(make(kind, torch.float64, FastNumerics()), tokens, 40)

    def error(dtype, numerics):
        return (by_chains(make(kind, dtype, numerics), tokens, 40) - reference).abs().max()

    # the coarsest grid, that of the cached values, has 20 bits where float32 has 24; seen: 1 to 4 times
    assert error(torch.float32, ExactNumerics()) < 8 * error(torch.float32, FastNumerics())
    # bfloat16 rounds residuals in both modes, which is most of the error
    assert error(torch.bfloat16, ExactNumerics()) < 2 * error(torch.bfloat16, FastNumerics())


@pytest.mark.medium
def test_close_to_fast_on_the_bundled_target(bundled):
    tokens = some_tokens(250, bundled.vocabulary)
    fast = by_chains(bundled, tokens, 250)
    exact = by_chains(LeanModel(bundled.config, bundled.weights, numerics=ExactNumerics()), tokens, 250)
    p, q = (each.double().log_softmax(-1) for each in (fast, exact))
    assert (p.exp() * (p - q)).sum(-1).max() < 1e-9
    assert torch.equal(fast.argmax(-1), exact.argmax(-1))
    assert 0 < (fast - exact).abs().max() < 2e-4


def test_subnormal_numbers_do_not_matter():
    model = make("qwen2", torch.float32, ExactNumerics())
    tokens = some_tokens(24, model.vocabulary)
    model.weights.embedding[tokens[3], ::2] = 1e-41
    for layer in model.weights.layers:
        layer.attention_norm[1] = 1e-39
        layer.ffn_norm[2] = 1e-42
    expected = by_chains(model, tokens, 8)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        assert (torch.tensor([1e-41]) * 1.0).item() == 0
        assert same_bits(by_chains(model, tokens, 8), expected)
    finally:
        torch.set_flush_denormal(False)


def test_a_broken_model_shows_as_nan_and_not_as_an_index():
    model = make("llama", torch.float32, ExactNumerics())
    model.weights.embedding[5, 0] = float("inf")
    assert by_chains(model, [5, 6], 2).isnan().any()


def test_contexts_that_leave_too_few_bits_are_refused():
    heads = HeadSizes(4, 2, 12, LARGEST_CONTEXT + 1)
    with pytest.raises(ModelError, match="context of 131073 exceeds 131072 columns"):
        ExactNumerics().layout(None, heads, torch.float32)
