"""The trainers of EAGLE heads: what is trained is what drafts, and what is written can be read."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.core.types import DraftRule
from engine.heads.loading import load_head
from engine.models.interface import chain_placement
from engine.proposers.interface import ProposerParts, TargetSide
from engine.proposers.trained.feature_head import feature_head
from engine.sampling.draw import draw
from engine.train.corpus import Corpus
from engine.train.heads import eagle, eagle3
from engine.train.heads.head_layer import HeadStage, UnrolledCache
from engine.train.passes import PositionLogits, agreements, held_out_windows, weighted_loss
from engine.train.recipe import Eagle3Recipe, EagleRecipe, TrainRecipe
from tests.support.lean_tensors import from_tensors

TRAINING = TrainRecipe(steps=60, learning_rate=2e-2, rows=4, window=24, warmup=2)
ONE = EagleRecipe(TRAINING, ffn=20)
THREE = Eagle3Recipe(TRAINING, ffn=20, aux_layers=(0, 1, 2), draft_vocabulary=24)


def loaded(folder, kind, teacher):
    """The written head, ready to draft for the teacher."""
    target = from_tensors(teacher.document, teacher.model.state_dict(), torch.float32)
    side = TargetSide(target, target.new_cache(1, 16))
    head = load_head(str(folder)).head
    parts = ProposerParts(1, 16, DraftRule.GREEDY, draw, (), target=side, head=head)
    return feature_head(kind, parts, (kind,))


def drafted(head, states, tokens, steps):
    """[steps, V] logits after all tokens but `steps`, each next step on the head's own output and a true token."""
    cache, count = head.decoder.new_cache(1, 32), len(tokens) - steps
    fused, found = head.fuse(states[: count - 1]), []
    placement = chain_placement([[0] * (count - 1)], [0], cache.trash)
    out = head.decoder.forward(cache, placement, head.inputs(tokens[1:count], fused))[-1:]
    for step in range(steps):
        found.append(head.logits(out)[0])
        placement = chain_placement([[0]], [count - 1 + step], cache.trash)
        out = head.decoder.forward(cache, placement, head.inputs(tokens[count + step][None], head.settle(out)))
    return torch.stack(found)


def rounded(module):
    """The module as its file holds it."""
    module.load_state_dict({name: each.bfloat16().float() for name, each in module.state_dict().items()})
    return module


@pytest.mark.medium
def test_eagle_trains_what_it_drafts_with(tmp_path, teacher, stream, monkeypatch):
    made, build = [], eagle.EagleHead
    monkeypatch.setattr(eagle, "EagleHead", lambda *given: made.append(build(*given)) or made[-1])
    lines = []
    eagle.train_eagle(HeadStage(teacher, stream, tmp_path / "head", lines.append), ONE)
    trained, fresh, tokens = made[0], build(teacher, ONE), held_out_windows(stream, 25)["held"]
    torch.manual_seed(0)
    before, after = (eagle.loss_of(each, teacher, tokens, ONE).item() for each in (fresh, trained))
    assert after < 0.8 * before
    assert any("held out: position 1 " in line for line in lines)
    head, window = loaded(tmp_path / "head", "eagle", teacher), tokens[0, :12]
    with torch.no_grad():
        lesson, unrolled, state = teacher.lesson(window[None]), UnrolledCache(), None
        rounded(trained)
        state = lesson.hidden[2][:, :8]
        for step, logits in enumerate(drafted(head, lesson.hidden[2][0], window, 3)):
            state = trained(lesson.embedded[:, 1 + step : 9 + step], state, unrolled)
            torch.testing.assert_close(logits, state[0, -1] @ teacher.head.T, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_eagle3_trains_what_it_drafts_with(tmp_path, teacher, stream, monkeypatch):
    made, build = [], eagle3.Eagle3Head
    monkeypatch.setattr(eagle3, "Eagle3Head", lambda *given: made.append(build(*given)) or made[-1])
    eagle3.train_eagle3(HeadStage(teacher, stream, tmp_path / "head", lambda line: None), THREE)
    trained = made[0]
    tokens = held_out_windows(stream, 25)["held"]
    fresh = build(teacher, trained.kept, THREE)
    before, after = (eagle3.loss_of(each, teacher, tokens, THREE).item() for each in (fresh, trained))
    assert after < 0.95 * before
    head, window = loaded(tmp_path / "head", "eagle3", teacher), tokens[0, :12]
    assert head.layers == (0, 1, 2)
    with torch.no_grad():
        hidden = teacher.lesson(window[None]).hidden
        states = torch.cat([hidden[layer][0] for layer in (0, 1, 2)], 1)
        passes = eagle3.unroll(rounded(trained), teacher, window[None, :11], THREE)
        for logits, each in zip(drafted(head, states, window, 3), passes, strict=True):
            torch.testing.assert_close(logits[trained.kept], each.draft[0, -1], rtol=1e-3, atol=1e-3)
            unknown = [token for token in range(32) if token not in trained.kept.tolist()]
            assert torch.all(logits[unknown] == -torch.inf)


def test_a_training_is_resumed(tmp_path, teacher, stream):
    short = replace(ONE, training=replace(TRAINING, steps=4))
    first, again = [], []
    eagle.train_eagle(HeadStage(teacher, stream, tmp_path / "head", first.append), short)
    eagle.train_eagle(HeadStage(teacher, stream, tmp_path / "head", again.append), short)
    assert first
    assert not again


def test_the_draft_vocabulary_is_the_most_frequent():
    stream = np.array([3, 3, 3, 1, 1, 7, 7, 5], np.uint16)
    kept = eagle3.draft_vocabulary(Corpus(stream, stream[:0], {}), 3, 8)
    assert kept.tolist() == [1, 3, 7]


def test_a_deep_target_gets_the_published_layers():
    assert eagle3.fitting_layers((1, 2, 4), 4) == (1, 2, 4)
    assert eagle3.fitting_layers((1, 2, 4), 32) == (2, 16, 29)


def test_agreement_is_the_chance_that_a_drawn_token_is_kept():
    p, q = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.25, 0.5]])
    assert PositionLogits(p.log(), q.log()).agreement() == pytest.approx(0.75)


def test_a_pass_s_loss_is_the_cross_entropy_of_the_rows_that_count():
    p, q = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]), torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.5, 0.0]])
    one, two = 1.75 * np.log(2), np.log(2)
    assert PositionLogits(p.log(), q.add(1e-30).log()).loss().item() == pytest.approx((one + two) / 2)
    first = PositionLogits(p.log(), q.add(1e-30).log(), torch.tensor([True, False]))
    assert first.loss().item() == pytest.approx(one)
    assert weighted_loss([first, first], (1.0, 0.5)).item() == pytest.approx(1.5 * one)
    with pytest.raises(ValueError, match="zip"):
        weighted_loss([first], (1.0, 0.5))


def test_held_out_domains_count_equally(stream):
    held = {"a": stream.dialogue[:30], "b": stream.dialogue[:10], "short": stream.dialogue[:3]}
    rows = {3: 0.75, 1: 1.0}
    said = {n: PositionLogits(torch.zeros(1, 4), torch.tensor([[0.0, 0.0, 0.0, 100.0]]) * (n == 3)) for n in rows}
    found = agreements(Corpus(stream.code, stream.code, held), 10, lambda tokens: [said[len(tokens)]] * 2)
    assert found == {"position 1": pytest.approx(0.625), "position 2": pytest.approx(0.625)}
