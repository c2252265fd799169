"""Why the bits cannot differ: which operations run, and that each sum is exact before anything is rounded."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.models.cache import CacheShape, WriteSlots
from engine.models.interface import Placement, WantedOutputs, chain_placement
from engine.models.numerics.exact import VALUE_BITS, ExactNumerics, factor_bits, row_unit
from engine.models.numerics.fast import FastNumerics
from engine.models.numerics.interface import Affine, HeadSizes, RopeTables

from .exact_models import by_chains, by_trees, make, some_tokens

HEADS = HeadSizes(heads=4, kv_heads=2, head_dim=8, context=512)
MOVES = {
    "_to_copy", "_unsafe_view", "alias", "arange", "cat", "clone", "copy_", "detach", "embedding", "empty", "expand",
    "full", "index", "index_put_", "index_select", "lift_fresh", "constant_pad_nd", "masked_fill_", "permute", "select",
    "index_copy_", "split_with_sizes",
    "slice", "split", "squeeze", "t", "take", "transpose", "unsqueeze", "view", "zeros", "where", "_reshape_alias",
    "scalar_tensor", "ones_like", "zeros_like", "stack", "reshape", "unbind",
    "_local_scalar_dense",
}  # fmt: skip
COMPARISONS = {"abs", "amax", "clamp_", "gt", "le", "lt", "bitwise_and_", "bitwise_not", "neg_", "neg", "logical_not"}
ROUNDED_ONCE = {"add", "add_", "sub_", "mul", "mul_", "div", "div_", "sqrt_", "round_"}
SUMS = {"mm", "bmm", "sum"}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


class Log(TorchDispatchMode):
    """Names of the operations that run, and any factor that would make an addition more than one."""

    def __init__(self):
        super().__init__()
        self.names, self.scaled = set(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.names.add(name)
        if (kwargs or {}).get("alpha", 1) != 1 or (name in ("add", "add_", "sub", "sub_") and len(args) > 2):
            self.scaled.append(name)
        return func(*args, **(kwargs or {}))


def operations(numerics):
    log = Log()
    for kind in ("llama", "qwen2", "qwen3"):
        for dtype in (torch.float32, torch.bfloat16):
            model = make(kind, dtype, numerics)
            tokens = some_tokens(18, model.vocabulary)
            with log:
                by_chains(model, tokens, 5)
                by_trees(model, tokens)
                cache = model.new_cache(2, 20)
                model.forward(cache, chain_placement([tokens[:3], tokens[:5]], [0, 0], cache.trash), WantedOutputs())
    return log


@pytest.mark.medium
def test_every_operation_is_exact_or_rounded_once():
    log = operations(ExactNumerics())
    assert log.names <= MOVES | COMPARISONS | ROUNDED_ONCE | SUMS
    assert {"mm", "bmm", "sum", "sqrt_", "div", "take"} <= log.names
    assert log.scaled == []


@pytest.mark.medium
def test_the_list_does_tell_modes_apart():
    assert operations(FastNumerics()).names - (MOVES | COMPARISONS | ROUNDED_ONCE | SUMS) >= {"silu", "addcmul"}


def random(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shuffled(count, seed=0):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("inner", [48, 700])
def test_the_order_of_a_product_cannot_show(inner):
    x, weight, order = random(30, inner, seed=1), random(40, inner, seed=2), shuffled(inner)
    exact, fast = ExactNumerics(), FastNumerics()
    a, b = (exact.matrix(Affine(each, None)) for each in (weight, weight[:, order].contiguous()))
    assert torch.equal(a(x), b(x[:, order]))
    a, b = (fast.matrix(Affine(each, None)) for each in (weight, weight[:, order].contiguous()))
    assert not torch.equal(a(x), b(x[:, order]))


def test_the_order_of_a_norm_cannot_show():
    x, order = random(200, 48, seed=3), shuffled(48)
    exact = ExactNumerics()
    norm = exact.norm(None, 1e-6, 48)
    assert torch.equal(norm(x)[:, order], norm(x[:, order]))


def filled(numerics, keys, values):
    cache = numerics.new_cache(CacheShape(1, 1, HEADS.kv_heads, len(keys), HEADS.head_dim), torch.float32)
    columns = torch.arange(len(keys))
    ones = RopeTables(torch.ones(len(keys), 1, HEADS.head_dim), torch.zeros(len(keys), 1, HEADS.head_dim))
    cache.write(0, cache.open(WriteSlots(columns, columns, slice(0, len(keys)))), numerics.rotate(keys, ones), values)
    return cache


def seen_by_last(numerics, queries, cache, columns):
    """Attention in float64 of queries that see all of the first `columns`."""
    count = len(queries)
    branches = torch.arange(cache.keys[0].shape[2])[None, None] < columns
    span = cache.keys[0].shape[2]
    placement = Placement(
        torch.zeros(1, count, dtype=torch.int64),
        torch.full((1, count), columns - 1),
        torch.zeros(1, count, dtype=torch.int64),
        lengths=(count,),
        span=span,
        branches=branches.expand(1, count, span),
    )
    layout = numerics.layout(placement, HEADS, torch.float32)
    return numerics.attend(queries, numerics.windows(cache, layout)[0], layout)


def test_the_order_of_columns_their_number_and_the_queries_beside_cannot_show():
    numerics = ExactNumerics()
    keys, values = (random(90, HEADS.kv_heads, HEADS.head_dim, seed=seed).mul_(2) for seed in (4, 5))
    queries = random(60, HEADS.heads, HEADS.head_dim, seed=6).mul_(2)
    unturned = RopeTables(torch.ones(60, 1, HEADS.head_dim), torch.zeros(60, 1, HEADS.head_dim))
    queries = numerics.rotate(queries, unturned)
    expected = seen_by_last(numerics, queries, filled(numerics, keys, values), 90)
    assert expected.dtype is torch.float64
    order = shuffled(90)
    assert torch.equal(seen_by_last(numerics, queries, filled(numerics, keys[order], values[order]), 90), expected)
    more = filled(numerics, *(torch.cat([each, random(70, *each.shape[1:], seed=7)]) for each in (keys, values)))
    assert torch.equal(seen_by_last(numerics, queries, more, 90), expected)
    alone = [seen_by_last(numerics, each[None], more, 90)[0] for each in queries]
    assert torch.equal(torch.stack(alone), expected)


def test_queries_and_keys_lie_on_grids_that_fit_the_head():
    numerics, x = ExactNumerics(), random(50, 6, HEADS.head_dim, seed=8)
    tables = RopeTables(random(50, 1, HEADS.head_dim, seed=9), random(50, 1, HEADS.head_dim, seed=10))
    turned = numerics.rotate(x, tables)
    bits = factor_bits(HEADS.head_dim).right
    steps = turned / row_unit(turned) * 2.0 ** (bits + 1)
    assert torch.equal(steps, steps.round())
    plain = FastNumerics().rotate(x, tables)
    assert ((turned - plain).abs() <= row_unit(plain) * 2.0 ** -(bits + 1) + 1e-14).all()


def test_cached_values_are_integers_of_few_bits_and_their_unit():
    values = random(40, HEADS.kv_heads, HEADS.head_dim, seed=11) * 10.0 ** torch.arange(-20, 20)[:, None, None]
    stored = filled(ExactNumerics(), values, values).values[0][0, :, :40]
    integers, unit = stored[..., :-1] * 2.0**VALUE_BITS, stored[..., -1:]
    assert torch.equal(integers, integers.round())
    assert integers.abs().max() <= 2**VALUE_BITS
    error = (stored[..., :-1] * unit - values.transpose(0, 1)).abs()
    assert (error <= unit * 2.0 ** -(VALUE_BITS + 1)).all()
