"""Grids and sums against Python's integers and fractions."""

from fractions import Fraction

import pytest
import torch

from engine.models.numerics.exact import (
    SMALLEST_PEAK,
    VALUE_BITS,
    ExactNumerics,
    factor_bits,
    gridded,
    on_grid,
    power_of_two,
    row_unit,
    weighted_sum,
)
from engine.models.numerics.exact import sum_of_squares as squares
from engine.models.numerics.interface import Affine, HeadSizes


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def wild(*shape, seed=0):
    """Numbers of very different magnitudes within a row."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * 10.0 ** torch.randint(-4, 3, shape, generator=generator)


def rational(x):
    return [Fraction(value) for value in x.tolist()]


def dot(a, b):
    return sum((x * y for x, y in zip(rational(a), rational(b), strict=True)), Fraction(0))


@pytest.mark.parametrize("terms", [1, 2, 3, 96, 256, 257, 4096, 16385])
def test_the_largest_sum_still_is_an_exact_integer(terms):
    bits = factor_bits(terms)
    assert terms * 2 ** (bits.left + bits.right) <= 2**53
    assert terms * 2 ** (bits.left + bits.right + 2) > 2**53
    assert bits.left - bits.right in (0, 1)


def test_powers_of_two():
    x = torch.tensor([1.0, 1.5, 2.0, 0.99, 3e-300, 7e300, -5.0], dtype=torch.float64)
    expected = [2.0 ** (torch.frexp(each.abs()).exponent.item() - 1) for each in x]
    assert power_of_two(x.clone()).tolist() == expected


def test_a_row_lies_on_its_grid_and_near_its_values():
    x = wild(50, 40).double()
    unit, on = row_unit(x), gridded(x, 20)
    steps = on / unit * 2**20
    assert torch.equal(steps, steps.round())
    assert steps.abs().max() <= 2**20
    assert ((on - x).abs() <= unit * 2.0**-21).all()
    assert (unit / 2 <= x.abs().amax(-1, keepdim=True)).all()


def test_halves_go_to_the_even_step():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 3.0], dtype=torch.float64)
    assert on_grid(x, 8.0, 3).tolist() == [0.0, 2.0, 2.0, 0.0, -2.0, 3.0]


def test_rows_without_weight_share_the_smallest_grid():
    x = torch.tensor([[0.0, 0.0], [1e-310, -1e-40]], dtype=torch.float64)
    assert gridded(x, 24).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert row_unit(x).tolist() == [[2 * SMALLEST_PEAK]] * 2


@pytest.mark.medium
@pytest.mark.parametrize(("inner", "rows"), [(256, 1), (96, 7), (700, 3), (2500, 2)])
def test_matrix_products_are_integer_sums(inner, rows):
    weight, x = wild(9, inner, seed=1), wild(rows, inner, seed=2)
    answer = ExactNumerics().matrix(Affine(weight.double(), None))(x)
    bits = factor_bits(inner)
    left, right = gridded(x, bits.left), gridded(weight, bits.right, 2.0**-30)
    assert answer.dtype is torch.float64
    assert [rational(row) for row in answer] == [[dot(a, b) for b in right] for a in left]


def test_the_bias_costs_one_rounding_and_the_dtype_another():
    weight, bias, x = wild(5, 64), wild(5, seed=1), wild(3, 64, seed=2)
    exact = ExactNumerics()
    wide = exact.matrix(Affine(weight.double(), bias.double()))(x)
    bare = exact.matrix(Affine(weight.double(), None))(x)
    assert torch.equal(wide, bare + bias.double())
    assert torch.equal(exact.matrix(Affine(weight, bias))(x), wide.float())
    narrow = exact.matrix(Affine(weight.bfloat16(), bias.bfloat16()))(x)
    assert narrow.dtype is torch.bfloat16


def test_products_never_fall_below_the_normal_numbers():
    weight, x = wild(4, 64) * 1e-30, wild(3, 64, seed=1) * 1e-12
    answer = ExactNumerics().matrix(Affine(weight, None))(x)
    assert ((answer == 0) | (answer.abs() >= torch.finfo(torch.float32).tiny)).all()
    tiny_bias = torch.full((4,), 1e-40)
    assert not ExactNumerics().matrix(Affine(torch.zeros(4, 64), tiny_bias))(x).any()


def test_sums_of_squares_are_integer_sums():
    x = wild(6, 300).double()
    rows = gridded(x, factor_bits(300).right)
    assert rational(squares(x).flatten()) == [dot(row, row) for row in rows]


def test_attention_sums_are_exact_and_blind_to_hidden_columns():
    heads = HeadSizes(heads=2, kv_heads=1, head_dim=8, context=1024)
    weights = torch.rand(1, 3, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights /= weights.amax(-1, keepdim=True)
    values = on_grid(wild(1, 40, 9, seed=3).double().clamp(-1, 1), 1.0, VALUE_BITS)
    values[..., -1] = 2.0 ** torch.randint(-6, 6, (1, 40), generator=torch.Generator().manual_seed(1)).double()
    found = weighted_sum(weights.clone(), values, heads)
    for query in range(3):
        row = weights[0, query]
        scaled = row * values[0, :, -1]
        top = row_unit(scaled)
        gridded_weights, denominator = on_grid(scaled, top, 23), Fraction(0)
        denominator = sum(rational(on_grid(row, 1.0, 43)), Fraction(0))
        for place in range(8):
            numerator = dot(gridded_weights, values[0, :, place])
            assert found[0, query, place].item() == float(numerator) / float(denominator)
            assert Fraction(float(numerator)) == numerator
    wide_weights = torch.cat([weights, torch.zeros(1, 3, 500, dtype=torch.float64)], -1)
    wide_values = torch.cat([values, wild(1, 500, 9).double()], 1)
    assert torch.equal(weighted_sum(wide_weights, wide_values, heads), found)
