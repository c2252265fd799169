"""Our exp, activation and norm against decimal arithmetic, and the rotary tables against an independent series."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
import torch.nn.functional as F

from engine.models.numerics.exact import ExactNumerics, Exponential, gated, rms_norm
from engine.models.numerics.fast import FastNumerics
from engine.models.numerics.interface import GrowingRope
from engine.models.numerics.rotations import BLOCK, frequencies, rope_tables, rotation

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def exponential():
    return Exponential()


def errors_in_ulps(x, found):
    with localcontext() as context:
        context.prec = 50
        pairs = zip(x.tolist(), found.tolist(), strict=True)
        return [float(abs(Decimal(y) - Decimal(a).exp()) / Decimal(math.ulp(y))) for a, y in pairs]


@pytest.mark.medium
def test_exp_is_within_two_ulps(exponential):
    generator = torch.Generator().manual_seed(0)
    x = -41.5 * torch.rand(20_000, dtype=torch.float64, generator=generator) ** 2
    borders = -(torch.arange(7600, dtype=torch.float64) + 0.5) * math.log(2) / 128
    x = torch.cat([x, borders, borders - 1e-12, -(2.0 ** -torch.arange(1.0, 60.0, dtype=torch.float64))])
    assert max(errors_in_ulps(x, exponential(x.clone()))) < 2


def test_exp_at_its_ends(exponential):
    x = torch.tensor([0.0, -0.0, -41.59, -1e300, float("-inf"), float("nan")], dtype=torch.float64)
    found = exponential(x).tolist()
    assert found[:5] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert math.isnan(found[5])


def test_exp_does_not_exceed_one_and_does_not_fall(exponential):
    x = -torch.linspace(0, 41.5, 100_001, dtype=torch.float64).flip(0)
    found = exponential(x.clone())
    assert found.max() == 1.0
    assert (found.diff() >= 0).all()


def test_the_activation_is_silu_times_up(exponential):
    gate_up = torch.randn(64, 512, generator=torch.Generator().manual_seed(1)) * 8
    gate, up = gate_up.double().chunk(2, -1)
    torch.testing.assert_close(gated(gate_up, exponential), F.silu(gate) * up, rtol=1e-15, atol=1e-16)


def test_the_norm_is_that_of_torch():
    x = torch.randn(20, 256, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 3
    weight = torch.randn(256, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    # 22 bits of each number enter the sum of squares
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), F.rms_norm(x, (256,), weight, 1e-5), rtol=1e-6, atol=0)
    assert not rms_norm(torch.zeros(1, 256), None, 1e-6).any()


@pytest.mark.parametrize("rope", [{"rope_type": "default", "rope_theta": 10000.0}, LLAMA3])
def test_frequencies_agree_with_floating_point(rope):
    found = frequencies(64, rope)
    plain = [rope["rope_theta"] ** (-2 * i / 64) for i in range(32)]
    if rope is not LLAMA3:
        assert found == pytest.approx(plain, rel=1e-15)
        return
    # the published rule, by wavelengths: short waves stay, long ones are slowed, those between are blended
    for slow, fast in zip(found, plain, strict=True):
        share = (8192 * fast / (2 * math.pi) - 1.0) / 3.0
        expected = fast if share >= 1 else fast / 8 if share <= 0 else fast * share + fast / 8 * (1 - share)
        assert slow == pytest.approx(expected, rel=1e-14)


def test_known_frequencies_are_rounded_once():
    assert frequencies(4, {"rope_type": "default", "rope_theta": 10000.0}) == [1.0, 0.01]


def test_rotations_have_length_one_and_known_values():
    turn = rotation(1.0)
    assert abs(turn.cos**2 + turn.sin**2 - (1 << 384)) < 1 << 210
    assert turn.cos / (1 << 192) == 0.5403023058681398
    assert turn.sin / (1 << 192) == 0.8414709848078965


@pytest.mark.parametrize("positions", [1, BLOCK - 1, BLOCK, 3 * BLOCK + 5])
def test_tables_are_as_accurate_as_float64_allows(positions):
    steps = torch.tensor(frequencies(16, {"rope_type": "default", "rope_theta": 10000.0}), dtype=torch.float64)
    tables = rope_tables(steps, positions, torch.float64)
    assert tables.cos.shape == tables.sin.shape == (positions, 16)
    # math.cos reduces its argument exactly; the product before it is what is off, by half a unit of the angle
    angles = [[position * step for step in steps.tolist()] for position in range(positions)]
    bound = 2.0**-51 + math.ulp(positions) / 2
    for sign, own, function in ((1, tables.cos, math.cos), (-1, tables.sin, math.sin)):
        expected = torch.tensor([[function(angle) for angle in row] for row in angles], dtype=torch.float64)
        assert (own[:, :8] * sign - expected).abs().max() <= bound
        assert (own[:, 8:] - expected).abs().max() <= bound


@pytest.mark.parametrize("numerics", [FastNumerics(), ExactNumerics()], ids=["fast", "exact"])
def test_tables_grow_as_far_as_positions_reach_and_keep_their_bits(numerics):
    steps = torch.tensor(frequencies(8, {"rope_type": "default", "rope_theta": 10000.0}), dtype=torch.float64)
    grown, whole = (GrowingRope(numerics, steps, context, torch.float32) for context in (2**24, 9_001))
    for positions in ([0, 7], [], [4095], [4096], [9_000, 12]):
        rows, wanted = (each.at(torch.tensor(positions, dtype=torch.int64)) for each in (grown, whole))
        assert torch.equal(rows.cos, wanted.cos)
        assert torch.equal(rows.sin, wanted.sin)
    assert torch.equal(rows.cos[:, 0], numerics.rope(steps, 9_001, torch.float32).cos[[9_000, 12]])
    with pytest.raises(IndexError):
        whole.at(torch.tensor([9_001]))


def test_far_positions_are_right_where_one_product_would_not_be():
    step = 0.7302967433402214
    tables = rope_tables(torch.tensor([step], dtype=torch.float64), 100_001, torch.float64)
    with localcontext() as context:
        context.prec = 60
        full_turn = 2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
        angle = float(Decimal(step) * 100_000 % full_turn)
    assert tables.cos[100_000, 0].item() == pytest.approx(math.cos(angle), abs=1e-15)
    assert tables.sin[100_000, 1].item() == pytest.approx(math.sin(angle), abs=1e-15)
