"""Reading a prompt: no tile that its queries cannot see is worked on, and of the last layer only keys and values.

The bits stay.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.models.decoder.lean import LeanModel
from engine.models.interface import WantedOutputs, chain_placement
from engine.models.numerics.tiled import TILE, FixedNumerics, TiledNumerics, seen_tiles
from tests.bench.setting import lean

PROMPTS = ([3 + place % 1000 for place in range(400)], [7 + place % 900 for place in range(150)])
FIRST = 2
"""Cache row of the first prompt."""


class EveryTile(TiledNumerics):
    """Every block of queries works on every tile, as before blocks knew what they see."""

    def layout(self, placement, heads, dtype):
        found = super().layout(placement, heads, dtype)
        return replace(found, seen=(found.tiles,) * len(found.seen))


class EveryBucket(FixedNumerics):
    """Every block of queries works on every bucket."""

    def layout(self, placement, heads, dtype):
        found = super().layout(placement, heads, dtype)
        buckets = [replace(each, blocks=(True,) * len(each.blocks)) for each in found.buckets]
        return replace(found, buckets=buckets)


def read(model, want):
    """The cache after both prompts, and the answer."""
    cache = model.new_cache(FIRST + 2, 500)
    placement = chain_placement(PROMPTS, [0, 0], cache.trash, first_row=FIRST)
    with torch.inference_mode():
        return cache, model.forward(cache, placement, want)


@pytest.fixture(scope="module")
def model():
    return lean("bundled:target", mode="tiled")


@pytest.mark.medium
@pytest.mark.parametrize(("mode", "every"), [("tiled", EveryTile()), ("fixed", EveryBucket())])
def test_columns_that_no_query_of_a_block_sees_change_no_bit(mode, every):
    model, want = lean("bundled:target", mode=mode), WantedOutputs(hidden=(2,))
    plainer = LeanModel(model.config, model.weights, numerics=every)
    (cache, found), (whole, expected) = read(model, want), read(plainer, want)
    assert torch.equal(cache.all_keys, whole.all_keys)
    assert torch.equal(cache.all_values, whole.all_values)
    for row, prompt in enumerate(PROMPTS):
        assert torch.equal(found.logits[row, : len(prompt)], expected.logits[row, : len(prompt)])


def test_a_block_sees_the_tiles_up_to_its_last_query_in_any_row(model):
    numerics = TiledNumerics()
    long, short = PROMPTS
    cache = model.new_cache(2, 500)
    layout = numerics.layout(chain_placement([long, short], [0, 0], cache.trash), model.heads, torch.float32)
    assert layout.tiles == 4
    assert layout.seen[0] == 1
    assert layout.seen[-1] == 4
    assert list(layout.seen) == sorted(layout.seen)
    group = model.heads.group
    for block, tiles in enumerate(layout.seen):
        last = min((block + 1) * 64, layout.pads.width * group) // group - 1
        assert tiles * TILE > min(last, len(long) - 1)
    apart = numerics.layout(chain_placement([short, long], [300, 0], cache.trash), model.heads, torch.float32)
    assert apart.seen[0] == (300 + 64 // group - 1) // TILE + 1


def test_a_block_has_the_buckets_of_its_queries(model):
    placement = chain_placement([PROMPTS[0]], [0], model.new_cache(1, 500).trash)
    layout = FixedNumerics().layout(placement, model.heads, torch.float32)
    assert [each.columns for each in layout.buckets] == [256, 512]
    first, second = (each.blocks for each in layout.buckets)
    queries = 64 // model.heads.group
    assert first == tuple(block * queries < 256 for block in range(len(first)))
    assert second == tuple(not mine for mine in first)


def test_one_block_sees_all(model):
    layout = TiledNumerics().layout(chain_placement([[1, 2]], [140], 500), model.heads, torch.float32)
    assert layout.seen == (layout.tiles,) == (2,)
    assert seen_tiles(layout.placement, layout.pads, model.heads, 2) == (2,)


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["fast", "fixed", "tiled", "exact"])
def test_a_prompt_read_without_its_last_output_leaves_the_same_keys_and_values(mode):
    model = lean("bundled:target", mode=mode)
    (whole, _), (cache, answer) = read(model, WantedOutputs()), read(model, WantedOutputs(logits=False, hidden=(1,)))
    assert answer.logits is None
    assert set(answer.hidden) == {1}
    assert torch.equal(cache.all_keys, whole.all_keys)
    assert torch.equal(cache.all_values, whole.all_values)


@pytest.mark.medium
def test_the_last_layer_of_a_prompt_is_not_attended(model, monkeypatch):
    seen = []
    attend = type(model.numerics).attend
    monkeypatch.setattr(type(model.numerics), "attend", lambda *given: seen.append(given) or attend(*given))
    read(model, WantedOutputs(logits=False))
    assert len(seen) == model.config.layers - 1
    read(model, WantedOutputs(logits=False, hidden=(model.config.layers,)))
    assert len(seen) == 2 * model.config.layers - 1
