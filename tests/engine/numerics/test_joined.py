"""Joined layers have the bits of the same layers call by call, and are not used where threads share a product."""

from __future__ import annotations

import pytest
import torch

from engine.core.types import Tree
from engine.models.decoder.lean import SeparateLayers
from engine.models.interface import Placed, Sublayers, WantedOutputs, accepted_columns, chain_placement, place
from engine.models.numerics.ordered import joint_calls, ordered_code, panels
from engine.models.numerics.ordered.ordered import Int8Numerics, OrderedNumerics

from .exact_models import make, some_tokens

pytestmark = pytest.mark.skipif(ordered_code.rows_code() is None, reason="this processor has no fused vectors")

EVERYTHING = WantedOutputs(True, (0, 1, 2))


class OrderedCallByCall(OrderedNumerics):
    """The mode without joined layers."""

    def joined(self, layers, heads):
        return None


class Int8CallByCall(Int8Numerics):
    """The mode without joined layers."""

    def joined(self, layers, heads):
        return None


MODES = [(OrderedNumerics, OrderedCallByCall), (Int8Numerics, Int8CallByCall)]


def session(model, want=EVERYTHING):
    """What a prompt, ragged steps of several rows, a tree, a commit and a batch of later rows answer, and the cache."""
    cache, tokens = model.new_cache(3, 140), some_tokens(400, model.vocabulary)
    placements = [
        chain_placement([tokens[:101]], [0], cache.trash),
        chain_placement([tokens[101:104], [], tokens[104:108]], [101, 0, 0], cache.trash),
        chain_placement([tokens[108:109]], [104], cache.trash),
        place([Placed(0, 105, Tree((3, 4, 5, 6), (-1, -1, 0, 1))), None, Placed(7, 4, Tree((), ()))], cache.trash),
    ]
    answers = [model.forward(cache, placement, want) for placement in placements]
    cache.commit(0, accepted_columns(106, (1, 3)), accepted_columns(106, range(2)))
    late = chain_placement([tokens[:2], tokens[5:9]], [0, 5], cache.trash, first_row=1)
    answers.append(model.forward(cache, late, want))
    rows = [placement.lengths for placement in [*placements, late]]
    return answers, rows, cache


def equal(left, right):
    (answers, rows, cache), (others, _, other_cache) = left, right
    for answer, other, lengths in zip(answers, others, rows, strict=True):
        pairs = [(answer.logits, other.logits), *((answer.hidden[i], other.hidden[i]) for i in other.hidden)]
        for one, two in pairs:
            if one is None and two is None:
                continue
            assert one.dtype is two.dtype
            for row, count in enumerate(lengths):
                if not torch.equal(one[row, :count], two[row, :count]):
                    return False
    return torch.equal(cache.all_keys, other_cache.all_keys) and torch.equal(cache.all_values, other_cache.all_values)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("whole", "call_by_call"), MODES)
def test_the_bits_are_those_of_the_calls_one_by_one(whole, call_by_call, dtype, kind):
    model = make(kind, dtype, whole())
    assert model._joined is not None
    assert equal(session(model), session(make(kind, dtype, call_by_call())))


@pytest.mark.parametrize("part", [Sublayers((0,), (0, 1)), Sublayers((1,), ()), Sublayers((), (1,))])
def test_a_part_of_the_sublayers_too(part):
    want = WantedOutputs(True, (1,), part)
    models = [make("qwen3", torch.bfloat16, mode()) for mode in (OrderedNumerics, OrderedCallByCall)]
    assert equal(*(session(model, want) for model in models))


def test_a_prompt_without_answer_writes_the_same_keys_and_values():
    models = [make("llama", torch.float32, mode()) for mode in (OrderedNumerics, OrderedCallByCall)]
    assert equal(*(session(model, WantedOutputs(False, ())) for model in models))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("%index, %layer_size", "%index, 0"),
        ("ptr %ffn_gain", "ptr %attention_gain"),
        ("i32 32767", "i32 30000"),
        ("add nuw nsw i64 %i, 16", "add nuw nsw i64 %i, 32"),
    ],
)
def test_the_comparison_finds_wrong_code(right, wrong, monkeypatch):
    compiled = joint_calls.compiled
    monkeypatch.setattr(joint_calls, "compiled", lambda text, types, **more: compiled(_changed(text), types, **more))

    def _changed(text):
        changed = text.replace(right, wrong)
        assert changed != text
        return changed

    monkeypatch.setattr(joint_calls, "joined_code", joint_calls.joined_code.__wrapped__)
    models = [make("llama", torch.bfloat16, mode()) for mode in (OrderedNumerics, OrderedCallByCall)]
    assert not equal(*map(session, models))


def test_where_threads_share_a_product_the_layers_run_call_by_call(monkeypatch):
    model, asked = make("llama", torch.float32, OrderedNumerics()), []

    def begin(layers, cache, step):
        asked.append(len(step.tokens))
        return separate(layers, cache, step)

    separate = SeparateLayers.begin
    monkeypatch.setattr(SeparateLayers, "begin", begin)
    monkeypatch.setattr(panels, "SHARED", 48 * 192 * 5)
    torch.set_num_threads(2)
    found = session(model)
    assert asked == [101, 7, 6, 6]
    torch.set_num_threads(1)
    assert equal(found, session(model))
    assert len(asked) == 4
