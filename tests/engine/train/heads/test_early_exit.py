"""Early exits: the loss against its definition, and a short training that makes early layers draft better."""

import copy
import json
from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, LlamaForCausalLM

from engine.models.loading import load_model
from engine.train.heads.early_exit import exit_agreements, exit_weights, exits, loss_of, train_early_exit
from engine.train.heads.head_layer import HeadStage, load_teacher
from engine.train.recipe import EARLY_EXIT, EarlyExitRecipe, TrainRecipe
from tests.bench.setting import REFERENCE

PLAN = EarlyExitRecipe(TrainRecipe(steps=200, learning_rate=5e-3, rows=4, window=24, warmup=2))


def test_exits_weigh_more_the_later_they_are_and_add_up_to_one():
    assert exit_weights(4, 1.0) == (0.0, 0.1, 0.3, 0.6)
    assert exit_weights(1, 1.0) == (1.0,)
    assert sum(exit_weights(10, 0.2)) == pytest.approx(1.0)
    assert exit_weights(5, 0.0) == (0.0, 0.0, 0.0, 0.0, 1.0)


def test_the_last_exit_is_the_model_and_an_earlier_one_the_model_cut_there(teacher):
    tokens = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        early, last = exits(teacher.model, tokens)
        assert torch.equal(last, teacher.model(tokens).logits)
        cut = copy.deepcopy(teacher.model)
        cut.model.layers = cut.model.layers[:1]
        assert torch.allclose(early, cut(tokens).logits, atol=1e-6)


def test_the_loss_is_the_weighted_cross_entropy_to_the_target_as_it_was(teacher):
    tokens = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(4))
    plan = replace(EARLY_EXIT, scale=0.7)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        truth = teacher.model(tokens[:, :-1]).logits.float().softmax(-1)
        said = [F.log_softmax(each, -1) for each in exits(teacher.model, tokens[:, :-1])]
        expected = sum(
            weight * -(truth * each).sum(-1).mean() for weight, each in zip(exit_weights(2, 0.7), said, strict=True)
        )
        assert loss_of(teacher.model, teacher.model, tokens, plan).item() == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.slow
def test_training_makes_an_exit_draft_better_and_writes_a_target(tmp_path, teacher, tiny, built):
    source, out = tmp_path / "target", tmp_path / "out"
    torch.manual_seed(3)
    config = copy.deepcopy(teacher.model.config)
    config.num_hidden_layers, config.vocab_size = 3, 330
    LlamaForCausalLM(config).save_pretrained(source)
    AutoTokenizer.from_pretrained(built / "first" / "tokenizer").save_pretrained(source)
    before = exit_agreements(LlamaForCausalLM.from_pretrained(source), tiny, 24)
    lines = []
    half = replace(PLAN, training=replace(PLAN.training, steps=100))
    train_early_exit(HeadStage(load_teacher(source), tiny, out, lines.append), half)
    train_early_exit(HeadStage(load_teacher(source), tiny, out, lines.append), PLAN)
    assert any(line.startswith("step 200, 0.0 min left") for line in lines)
    after = exit_agreements(LlamaForCausalLM.from_pretrained(out, dtype=torch.float32), tiny, 24)
    assert before.keys() == after.keys() == {"exit after layer 1", "exit after layer 2"}
    assert after["exit after layer 2"] > before["exit after layer 2"] + 0.1
    assert load_model(str(out)).tokenizer is not None


def test_the_bundled_target_with_early_exits_is_what_its_card_and_the_recipe_say():
    card = json.loads((REFERENCE / "early_exit" / "card.json").read_text(encoding="utf-8"))
    loaded = load_model(str(REFERENCE / "early_exit"))
    assert card["files"] == {file.name: file.sha256 for file in loaded.files}
    assert card["model_sha256"] == loaded.model.facts["model_sha256"]
    assert card["training"] == json.loads(json.dumps(asdict(EARLY_EXIT)))
    assert card["began_as"]["target"] == load_model(str(REFERENCE / "target")).model.facts["model_sha256"]


def test_its_exits_draft_better_than_the_untrained_ones():
    card = json.loads((REFERENCE / "early_exit" / "card.json").read_text(encoding="utf-8"))
    trained, untrained = (card["acceptance"][key]["exit after layer 2"] for key in ("trained", "untrained"))
    for domain, found in trained.items():
        assert found["draft_acceptance_rate"] > untrained[domain]["draft_acceptance_rate"]
