"""Products through panels: the sums are the documented ones, bit by bit, for any rows, threads and processor."""

from __future__ import annotations

import platform
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.models.numerics import load
from engine.models.numerics.interface import Affine
from engine.models.numerics.ordered import panel_code
from engine.models.numerics.ordered import panels as module
from engine.models.numerics.ordered.machine_code import compiled_for
from engine.models.numerics.ordered.panel_code import ELEMENTS, PRODUCT, TERMS, source
from engine.models.numerics.ordered.panels import Panels, laid_out, panels, rounded_panels
from engine.models.probe.probe import row_dependence

pytestmark = pytest.mark.skipif(
    panel_code.product_code("float32") is None, reason="this processor has no fused vectors"
)


def drawn(seed, *shape, dtype=torch.float32):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5).to(dtype)


def product(affine):
    made = panels(affine)
    assert made is not None
    return made


def summed(row, weights, bias):
    """One number of the answer by fractions: every multiply-add is rounded once, to the nearest float32."""
    total = None
    for start in range(0, len(row), TERMS):
        part = np.float32(0)
        for a, b in zip(row[start : start + TERMS], weights[start : start + TERMS], strict=True):
            part = nearest(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(part)))
        total = part if total is None else total + part
    return total + np.float32(bias)


def nearest(value):
    """The float32 nearest to a fraction, the even one of two."""
    found = np.float32(value.numerator / value.denominator)
    near = (np.nextafter(found, np.float32(-np.inf)), found, np.nextafter(found, np.float32(np.inf)))
    return min(near, key=lambda each: (abs(Fraction(float(each)) - value), each.view(np.uint32) & 1))


@pytest.mark.medium
@pytest.mark.parametrize("terms", [1, 17, TERMS, TERMS + 3, 2 * TERMS + 500])
def test_the_sum_is_the_documented_one(terms):
    weight, bias, x = drawn(1, 20, terms), drawn(2, 20), drawn(3, 2, terms)
    found = product(Affine(weight, bias))(x)
    for row, column in ((0, 0), (1, 15), (0, 16), (1, 19)):
        assert found[row, column].item() == summed(x[row].numpy(), weight[column].numpy(), bias[column].item())


@pytest.mark.parametrize(
    ("columns", "terms"), [(1, 5), (16, 64), (33, 64), (100, 1500), (896, 4864), (48, 32768)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_row_depends_on_the_others(columns, terms, dtype):
    multiply = made(drawn(4, columns, terms, dtype=dtype), drawn(5, columns), code(dtype))
    assert row_dependence(multiply, drawn(6, 257, terms, dtype=dtype)) is None


def made(weight, bias, machine_code):
    return Panels(laid_out(weight), bias, bias, weight.dtype, machine_code)


def test_rounded_weights_are_near_and_no_row_depends_on_the_others():
    weight, bias, x = drawn(1, 100, 1500), drawn(2, 100), drawn(3, 257, 1500)
    weight[7] = 0
    multiply = rounded_panels(Affine(weight, bias))
    scale = (weight.abs().amax(1) / 127)[:, None]
    near = torch.where(scale > 0, (weight / torch.where(scale > 0, scale, 1)).round() * scale, 0)
    torch.testing.assert_close(multiply(x), F.linear(x, near, bias), rtol=1e-4, atol=1e-5)
    assert (near - weight).abs().max() <= scale.max() / 2 * 1.001
    assert not torch.allclose(near, weight, atol=1e-4)
    assert row_dependence(multiply, x) is None


def code(dtype):
    return panel_code.product_code(module.KINDS[dtype])


@pytest.mark.parametrize("rows", [*range(1, 20), 48, 49, 100])
def test_every_number_of_rows_is_near_torch(rows):
    affine = Affine(drawn(7, 70, 300), drawn(8, 70))
    x = drawn(9, rows, 300)
    torch.testing.assert_close(product(affine)(x), F.linear(x, affine.weight, affine.bias))


def test_bfloat16_is_rounded_once():
    weight, bias, x = (
        drawn(seed, *shape, dtype=torch.bfloat16) for seed, shape in ((1, (40, 96)), (2, (40,)), (3, (5, 96)))
    )
    found = made(weight, bias.float(), code(torch.bfloat16))(x)
    assert torch.equal(found, product(Affine(weight.float(), bias.float()))(x.float()).bfloat16())


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_change_no_bit(threads):
    affine = Affine(drawn(1, 1000, 300), drawn(2, 1000))
    multiply, x, before = product(affine), drawn(3, 9, 300), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = multiply(x)
        torch.set_num_threads(threads)
        assert torch.equal(multiply(x), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86 processors")
def test_other_code_has_the_same_bits():
    """Half vectors, by another choice of instructions."""
    weight, bias, x = drawn(1, 50, 1500), drawn(2, 50), drawn(3, 11, 1500)
    other = compiled_for(source(ELEMENTS["float32"]), {"product": PRODUCT}, "x86-64-v3", "+prefer-128-bit")
    assert torch.equal(made(weight, bias, other)(x), product(Affine(weight, bias))(x))


def test_strided_rows_are_read():
    affine, x = Affine(drawn(1, 24, 32), None), drawn(2, 6, 64)
    assert torch.equal(product(affine)(x[:, ::2]), product(affine)(x[:, ::2].clone()))
    assert product(affine)(x[:0, ::2]).shape == (0, 24)


def test_nothing_is_written_beside_the_answer():
    weight, x = drawn(1, 21, 40), drawn(2, 7, 40)
    multiply = made(weight, torch.zeros(21), code(torch.float32))
    room = torch.full((9, 21), 5.0)
    multiply._fill(x, room[1:8], range(2))
    assert (room[0] == 5).all()
    assert (room[8] == 5).all()
    assert not (room[1:8] == 5).any()


def test_other_kinds_have_none():
    assert panels(Affine(drawn(1, 8, 8).double(), None)) is None
    assert panels(Affine(torch.empty(8, 8, device="meta"), None)) is None


@pytest.mark.parametrize("mode", ["fast", "fixed", "tiled"])
def test_a_processor_without_the_code_takes_another_product(mode, monkeypatch):
    affine, x = Affine(drawn(1, 24, 32), drawn(2, 24)), drawn(3, 5, 32)
    usual = load(mode).matrix(affine)(x)
    monkeypatch.setattr(module, "product_code", lambda kind: None)
    assert panels(affine) is None
    torch.testing.assert_close(load(mode).matrix(affine)(x), usual)
