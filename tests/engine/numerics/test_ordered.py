"""Mode `ordered`: near the true values, the same bits by other machine code, and every query on its own columns."""

from __future__ import annotations

import math
import platform
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.core.types import Tree
from engine.models.cache import CacheShape
from engine.models.interface import Placed, chain_placement, place
from engine.models.numerics import load
from engine.models.numerics.interface import HeadSizes, Invariance, RopeTables
from engine.models.numerics.ordered import (
    joint_calls,
    machine_code,
    ordered,
    ordered_code,
    ordered_plan,
    panel_code,
    panels,
)
from engine.models.numerics.ordered.ordered import OrderedNumerics
from engine.models.numerics.ordered.ordered_plan import chain_plan, tree_plan
from engine.models.probe.choose import choose
from engine.models.probe.model_parts import parts_of
from engine.models.probe.probe import ANSWERS, digest

from .exact_models import by_chains, by_trees, make, some_tokens

pytestmark = pytest.mark.skipif(ordered_code.rows_code() is None, reason="this processor has no fused vectors")


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def mode():
    return OrderedNumerics()


@pytest.mark.parametrize("width", [4, 16, 48, 250])
def test_a_norm_is_near_the_true_one(mode, width):
    x, gain = drawn(1, 5, width), drawn(2, width)
    wide = x.double()
    true = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(mode.norm(gain, 1e-6, width)(x).double(), true * gain, rtol=5e-7, atol=1e-7)
    torch.testing.assert_close(mode.norm(None, 1e-6, width)(x).double(), true, rtol=5e-7, atol=1e-7)


@pytest.mark.parametrize("width", [1, 16, 50])
def test_a_gate_is_near_the_true_one(mode, width):
    x = torch.cat([drawn(1, 7, width) * 20, drawn(2, 7, width)], 1)
    gate, up = x.double().chunk(2, 1)
    torch.testing.assert_close(mode.gate(x).double(), F.silu(gate) * up, rtol=1e-6, atol=1e-30)


def test_exp_is_near_the_true_one_and_never_subnormal(mode):
    """silu(-x) * 1 = -x exp(-x) / (1 + exp(-x)) shows it."""
    x = torch.cat([torch.linspace(0, 87, 5000), torch.tensor([87.001, 100.0, 1e30])])
    found = mode.gate(torch.stack([-x, torch.ones_like(x)]).T.reshape(-1, 2)).double().ravel()
    true = -x.double() * torch.exp(-x.double()) / (1 + torch.exp(-x.double()))
    torch.testing.assert_close(found[:5000], true[:5000], rtol=5e-7, atol=0)
    assert found[5000:].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("width", [6, 12, 16, 32, 100])
def test_a_rotation_is_the_one_of_the_formula(mode, width):
    x, positions = drawn(1, 3, 9, width)[:, 2:7], torch.tensor([0, 3, 900])
    frequencies = 10000.0 ** (-torch.arange(width // 2, dtype=torch.float64) * 2 / width)
    tables = mode.rope(frequencies, 1000, torch.float32)
    found = mode.rotate(x, RopeTables(tables.cos[positions][:, None], tables.sin[positions][:, None]))
    angles = positions.double()[:, None] * frequencies
    pairs = torch.complex(x[..., : width // 2].double(), x[..., width // 2 :].double())
    true = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    torch.testing.assert_close(found.double(), torch.cat([true.real, true.imag], -1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dim", [8, 12, 16, 32, 80, 128])
@pytest.mark.parametrize("group", [1, 3])
def test_attention_is_near_the_true_one(mode, dim, group):
    heads = HeadSizes(2 * group, 2, dim, 512)
    model = partial(filled, mode, heads)
    placement = chain_placement([[0] * 5, [], [0] * 300], [7, 0, 0], 310)
    cache, layout = model(placement)
    queries = drawn(3, 305, heads.heads, dim)
    found = mode.attend(queries, mode.windows(cache, layout)[0], layout)
    tokens = [(0, position) for position in range(7, 12)] + [(2, position) for position in range(300)]
    for index in (0, 4, 5, 6, 170, 304):
        row, position = tokens[index]
        for head in (0, heads.heads - 1):
            keys, values = (
                each[0, row, head // group, : position + 1].double() for each in (cache.all_keys, cache.all_values)
            )
            weights = torch.softmax(keys @ queries[index, head].double() / math.sqrt(dim), 0)
            seen = found[index].view(heads.heads, dim)[head]
            torch.testing.assert_close(seen.double(), weights @ values, rtol=2e-5, atol=2e-6)


def filled(mode, heads, placement):
    """A cache of random columns, those that nobody sees far out."""
    cache = mode.new_cache(CacheShape(1, 3, heads.kv_heads, 310, heads.head_dim), torch.float32)
    cache.all_keys.copy_(drawn(1, *cache.all_keys.shape))
    cache.all_values.copy_(drawn(2, *cache.all_values.shape))
    cache.all_keys[:, 0, :, 12:] = cache.all_values[:, 0, :, 12:] = 1e30
    return cache, mode.layout(placement, heads, torch.float32)


def test_a_chain_sees_the_columns_up_to_its_position():
    plan = chain_plan(chain_placement([[0, 0], [], [0]], [4, 0, 0], 99))
    assert plan.tolist() == [[0, 5, 0, 0], [0, 6, 0, 0], [2, 1, 0, 0]]


def test_a_tree_sees_its_path():
    tree = Tree((1, 2, 3, 4), (-1, -1, 0, 1))
    plan = tree_plan(place([Placed(0, 5, tree), None, Placed(0, 2, Tree((), ()))], 99))
    heads = plan[:24].reshape(6, 4)
    assert heads[:, 0].tolist() == [0, 0, 0, 0, 0, 2]
    seen = [[*range(prefix), *plan[first : first + more].tolist()] for _, prefix, first, more in heads]
    committed = [0, 1, 2, 3, 4]
    assert seen == [committed, [*committed, 5], [*committed, 6], [*committed, 5, 7], [*committed, 6, 8], [0, 1]]


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_bit_depends_on_the_forward(mode, kind, dtype):
    model = make(kind, dtype, mode)
    tokens = some_tokens(301, model.vocabulary)
    alone = by_chains(model, tokens, 1)
    assert alone.dtype is dtype
    for width in (4, 7, 301):
        assert torch.equal(by_chains(model, tokens, width), alone)
    assert torch.equal(by_trees(model, tokens), alone)


@pytest.mark.medium
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86 processors")
def test_other_machine_code_has_the_known_answer(mode, monkeypatch):
    """Half vectors, by another choice of instructions."""

    def other(source, types, *, inline=False):
        return machine_code.compiled_for(source, types, "x86-64-v3", "+prefer-128-bit", inline=inline)

    monkeypatch.setattr(ordered_code, "compiled", other)
    monkeypatch.setattr(panel_code, "compiled", other)
    monkeypatch.setattr(ordered, "attention_code", ordered_code.attention_code.__wrapped__)
    monkeypatch.setattr(ordered_plan, "rows_code", ordered_code.rows_code.__wrapped__)
    for name in ("attention_code", "rows_code"):
        monkeypatch.setattr(joint_calls, name, getattr(ordered_code, name).__wrapped__)
    monkeypatch.setattr(joint_calls, "compiled", other)
    monkeypatch.setattr(joint_calls, "joined_code", joint_calls.joined_code.__wrapped__)
    monkeypatch.setattr(panels, "product_code", panel_code.product_code.__wrapped__)
    assert digest(mode) == ANSWERS["ordered"]
    assert digest(load("int8")) == ANSWERS["int8"]


@pytest.mark.medium
def test_the_known_answer_can_fail(mode, monkeypatch):
    monkeypatch.setattr(panel_code, "TERMS", 16)
    monkeypatch.setattr(panels, "product_code", panel_code.product_code.__wrapped__)
    assert digest(mode) != ANSWERS["ordered"]


@pytest.mark.medium
def test_a_processor_without_the_code_gets_another_mode(monkeypatch):
    model = make("llama", torch.float32, load("fast"))
    assert choose("auto", parts_of(model.config, model.weights), "m").facts.mode == "ordered"
    for module, name in ((panels, "product_code"), (ordered_plan, "rows_code"), (ordered, "attention_code")):
        monkeypatch.setattr(module, name, lambda *_: None)
    facts = choose("auto", parts_of(model.config, model.weights), "m").facts
    assert facts.mode == "tiled"
    assert "ordered fails products" in facts.reason


def test_a_draft_takes_the_fastest_mode_unprobed(monkeypatch):
    model = make("llama", torch.float32, load("fast"))
    parts = parts_of(model.config, model.weights)
    facts = choose("drafting", parts, "m").facts
    assert (facts.mode, facts.promises, facts.probe) == ("ordered", Invariance.NONE, None)
    assert "nothing was probed" in facts.reason
    monkeypatch.setattr(panels, "product_code", lambda _: None)
    assert choose("drafting", parts, "m").facts.mode == "fast"


@pytest.mark.medium
def test_rounded_weights_keep_the_law_of_rows_and_change_the_numbers():
    rounded, whole = (make("llama", torch.float32, load(name)) for name in ("int8", "ordered"))
    tokens = some_tokens(61, whole.vocabulary)
    alone = by_chains(rounded, tokens, 1)
    assert torch.equal(by_chains(rounded, tokens, 7), alone)
    away = (alone - by_chains(whole, tokens, 1)).abs().max()
    assert 1e-4 < away < 0.5


@pytest.mark.medium
def test_float64_gets_another_mode():
    model = make("llama", torch.float64, load("fast"))
    facts = choose("auto", parts_of(model.config, model.weights), "m").facts
    assert facts.mode != "ordered"
    assert "no product for float64" in facts.reason


def test_trees_do_not_change_the_plan_of_a_chain():
    tree = place([Placed(0, 5, Tree.chain((1, 2)))], 99)
    assert np.array_equal(chain_plan(tree)[:, :2], [[0, 5], [0, 6], [0, 7]])
