"""Training: a resumed run is the run, bit by bit; the losses are what they are called."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.train import trainer
from engine.train.recipe import ModelRecipe, TrainRecipe

from .conftest import RECIPE

MODEL = ModelRecipe(layers=1, hidden=16, heads=2, kv_heads=1, ffn=24, context=64)
TRAINING = TrainRecipe(steps=4, learning_rate=1e-2, rows=2, window=32, warmup=2)
DISTILLED = replace(TRAINING, distillation=0.9)


def fresh(seed=3):
    return trainer.new_model(MODEL, RECIPE.vocabulary, seed)


def silent(text):
    pass


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def equal(first, second):
    return all(torch.equal(first[name], second[name]) for name in first.keys() | second.keys())


class Interrupted(Exception):
    pass


@pytest.fixture
def run(tiny, monkeypatch):
    """Train to the recipe's end, starting anew after each of `stops` as a new process would."""
    monkeypatch.setattr(trainer, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(trainer, "held_out_loss", lambda model, corpus: {})

    def go(recipe, folder, stops=(), teacher=None):
        step = 0
        for stop in (*stops, None):
            told = iter(range(step, recipe.steps))

            def report(text, told=told, stop=stop):
                """Called after each save."""
                if next(told) + 1 == stop:
                    raise Interrupted

            # another seed after a stop: what a checkpoint does not restore would show
            model = fresh(seed=3 + step)
            if stop is None:
                trainer.train(model, tiny, recipe, folder, report, teacher)
            else:
                with pytest.raises(Interrupted):
                    trainer.train(model, tiny, recipe, folder, report, teacher)
                step = stop
        return weights(model)

    return go


@pytest.mark.medium
@pytest.mark.parametrize("recipe", [TRAINING, DISTILLED], ids=["plain", "distilled"])
def test_a_resumed_run_ends_with_the_same_weights(run, tmp_path, recipe):
    teacher = fresh(seed=9).eval() if recipe.distillation else None
    whole = run(recipe, tmp_path / "whole", teacher=teacher)
    halves = run(recipe, tmp_path / "halves", stops=(2,), teacher=teacher)
    steps = run(recipe, tmp_path / "steps", stops=(1, 2, 3), teacher=teacher)
    assert equal(whole, halves)
    assert equal(whole, steps)
    assert not equal(whole, weights(fresh()))


def test_a_finished_run_is_not_continued(run, tiny, tmp_path):
    whole = run(TRAINING, tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    model = fresh(seed=8)
    trainer.train(model, tiny, TRAINING, tmp_path, silent)
    assert equal(weights(model), whole)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_an_interrupted_save_leaves_the_old_checkpoint(run, tmp_path, monkeypatch):
    run(TRAINING, tmp_path)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()

    def interrupted(tensors, path, metadata):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "save_file", interrupted)
    model = fresh()
    optimiser = torch.optim.AdamW(model.parameters())
    with pytest.raises(KeyboardInterrupt):
        trainer.save(model, optimiser, tmp_path, trainer.TrainingProgress(9))
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert trainer.restore(model, optimiser, tmp_path).step == TRAINING.steps


def test_the_step_belongs_to_the_checkpoint(run, tmp_path):
    """In one file with the weights, so that a crash cannot leave one without the other."""
    run(TRAINING, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    model = fresh()
    assert trainer.restore(model, torch.optim.AdamW(model.parameters()), tmp_path).step == TRAINING.steps


def test_batches_depend_on_seed_and_step_only(tiny):
    first = trainer.batch(tiny, TRAINING, 3)
    assert torch.equal(first, trainer.batch(tiny, TRAINING, 3))
    assert not torch.equal(first, trainer.batch(tiny, TRAINING, 4))
    assert not torch.equal(first, trainer.batch(tiny, replace(TRAINING, seed=1), 3))
    assert first.shape == (2, 33)


def test_the_share_of_code_is_about_what_was_asked(tiny):
    code, spoken = (np.asarray(tokens) for tokens in (tiny.code, tiny.dialogue))
    windows = {bytes(code[i : i + 9]) for i in range(len(code) - 8)} - {
        bytes(spoken[i : i + 9]) for i in range(len(spoken) - 8)
    }
    recipe = replace(TRAINING, rows=4, window=8, code_share=0.3)
    rows = np.concatenate([trainer.batch(tiny, recipe, step).numpy() for step in range(100)])
    found = np.mean([row.astype(np.uint16).tobytes() in windows for row in rows])
    assert 0.15 < found <= 0.4


def test_the_learning_rate_warms_up_and_falls_to_a_tenth():
    recipe = TrainRecipe(steps=1000, learning_rate=1.0, warmup=100)
    rates = [trainer.learning_rate(recipe, step, step / 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(0.01)
    assert int(np.argmax(rates)) in range(95, 105)
    assert rates[-1] == pytest.approx(0.1, abs=1e-3)
    assert all(a >= b for a, b in itertools.pairwise(rates[105:]))


def test_the_distilled_loss_is_the_mixture_it_says(tiny):
    model, teacher = fresh().eval(), fresh(seed=9).eval()
    tokens = trainer.batch(tiny, DISTILLED, 0)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        q, p = (F.log_softmax(each(tokens[:, :-1]).logits.float().flatten(0, 1), -1) for each in (model, teacher))
    truth = -q[torch.arange(len(q)), tokens[:, 1:].flatten()].mean()
    divergence = (p.exp() * (p - q)).sum(-1).mean()
    loss = trainer.loss_of(model, teacher, tokens, DISTILLED)
    torch.testing.assert_close(loss, 0.9 * divergence + 0.1 * truth, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(trainer.loss_of(model, None, tokens, TRAINING), truth, atol=1e-4, rtol=1e-4)


def test_held_out_loss_of_an_untrained_model_is_that_of_guessing(tiny):
    losses = trainer.held_out_loss(fresh(), tiny, window=16, windows=2)
    assert set(losses) == set(tiny.held_out)
    for loss in losses.values():
        assert loss == pytest.approx(np.log(RECIPE.vocabulary), abs=0.5)


@pytest.mark.medium
def test_training_reduces_the_loss(tiny, tmp_path, monkeypatch):
    model = fresh()
    before = trainer.held_out_loss(model, tiny, window=16, windows=2)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "held_out_loss", lambda model, corpus: {})
        trainer.train(model, tiny, replace(TRAINING, steps=40, rows=4), tmp_path, silent)
    after = trainer.held_out_loss(model, tiny, window=16, windows=2)
    assert all(after[domain] < before[domain] for domain in before)


def test_a_new_model_knows_the_ids_of_the_chat_format():
    config = fresh().config
    assert (config.eos_token_id, config.bos_token_id, config.pad_token_id) == (0, 1, 2)
    assert equal(weights(fresh()), weights(fresh()))
