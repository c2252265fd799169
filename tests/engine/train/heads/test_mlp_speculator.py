"""The trainer of MLP speculators: what is trained is what drafts, and what is written can be read."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from engine.core.types import DraftRule
from engine.heads.loading import load_head
from engine.proposers.interface import ProposerParts, TargetSide
from engine.proposers.trained.fitted_head import fitted_head
from engine.proposers.trained.mlp_speculator import Speculator
from engine.sampling.draw import draw
from engine.train.heads import mlp_speculator
from engine.train.heads.head_layer import HeadStage
from engine.train.heads.mlp_speculator import MlpSpeculatorModule, loss_of, train_mlp_speculator, unroll
from engine.train.recipe import MlpSpeculatorRecipe, TrainRecipe
from tests.support.lean_tensors import from_tensors

PLAN = MlpSpeculatorRecipe(TrainRecipe(steps=60, learning_rate=5e-2, rows=4, window=24, warmup=2), stages=3, inner=24)
PLANS = (PLAN, replace(PLAN, tied=False, scale_input=False))


@pytest.fixture
def train(tmp_path, teacher, stream, monkeypatch):
    """The trained module, as its file holds it, and what was reported."""
    made, build = [], mlp_speculator.MlpSpeculatorModule
    monkeypatch.setattr(mlp_speculator, "MlpSpeculatorModule", lambda *given: made.append(build(*given)) or made[-1])

    def go(plan):
        lines = []
        train_mlp_speculator(HeadStage(teacher, stream, tmp_path / "head", lines.append), plan)
        made[-1].load_state_dict({name: each.bfloat16().float() for name, each in made[-1].state_dict().items()})
        return made[-1], lines

    return go


def loaded(folder, teacher):
    """The written speculator, ready to draft for the teacher."""
    target = from_tensors(teacher.document, teacher.model.state_dict(), torch.float32)
    side = TargetSide(target, target.new_cache(1, 16))
    parts = ProposerParts(1, 16, DraftRule.GREEDY, draw, (), target=side, head=load_head(str(folder)).head)
    return Speculator(fitted_head("mlp_speculator", parts))


@pytest.mark.medium
@pytest.mark.parametrize("plan", PLANS, ids=["tied", "untied"])
def test_a_stage_of_the_training_is_a_stage_of_a_draft(train, teacher, tmp_path, plan):
    module, _ = train(plan)
    speculator = loaded(tmp_path / "head", teacher)
    assert speculator.stages == 3
    tokens = torch.randint(0, 32, (1, 13), generator=torch.Generator().manual_seed(2))
    lesson = teacher.lesson(tokens)
    with torch.no_grad():
        passes = list(unroll(module, teacher, tokens, 3))
    assert len(passes) == 3
    for row in range(10):
        states = speculator.enter(lesson.hidden[2][:, row])
        for stage, each in enumerate(passes):
            newest = row + 1 + stage
            states = speculator.advance(stage, states, [tokens[0, newest].item()])
            torch.testing.assert_close(speculator.logits(stage, states), each.draft[:, row], rtol=1e-3, atol=1e-3)
            # the label is what the target says after the token that the stage read
            torch.testing.assert_close(each.target[:, row], lesson.logits[:, newest])


@pytest.mark.medium
@pytest.mark.parametrize("plan", PLANS, ids=["tied", "untied"])
def test_training_learns(train, teacher, stream, plan):
    windows = torch.from_numpy(stream.held_out["held"][:75].astype(np.int64).reshape(3, 25))
    module, lines = train(plan)
    with torch.no_grad():
        before = loss_of(MlpSpeculatorModule(teacher.config, plan), teacher, windows, plan)
        after = loss_of(module, teacher, windows, plan)
    # guessing is below an untrained module here: its outputs are of the size of the target's
    assert after < 0.98 * 3 * math.log(32) < before
    assert any("held out: position 1 " in line for line in lines)


def test_a_training_is_resumed(train):
    half = replace(PLAN, training=replace(PLAN.training, steps=4))
    assert train(half)[1]
    assert not train(half)[1]


def test_tied_stages_are_written_once(train, tmp_path):
    train(replace(PLAN, training=replace(PLAN.training, steps=1)))
    with safe_open(tmp_path / "head" / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    once = {f"{name}.0.weight" for name in ("emb", "head", "ln", "proj")} | {"ln.0.bias", "proj.1.weight"}
    assert names == {f"speculator.{name}" for name in once}
