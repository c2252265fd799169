"""Training of Medusa heads: labels, checkpoints, and what is written."""

import json
from dataclasses import replace

import pytest
import torch

from engine.heads.formats.medusa import LAYOUT
from engine.models.files.folder import open_folder
from engine.train import recipe, trainer
from engine.train.__main__ import main
from engine.train.heads import medusa
from engine.train.heads.head_layer import HeadStage, Teacher
from engine.train.heads.medusa import MedusaModule, frequent, loss_of, train_medusa

VOCABULARY = 330
PLAN = recipe.MedusaRecipe(
    recipe.TrainRecipe(steps=30, learning_rate=1e-2, rows=2, window=32, warmup=2), heads=2, layers=2, known_share=0.95
)


@pytest.fixture(scope="module")
def teacher():
    size = recipe.ModelRecipe(layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, context=320)
    model = trainer.new_model(size, VOCABULARY, seed=0)
    with torch.no_grad():
        # tied to the output matrix: distributions with something to learn in them
        model.model.embed_tokens.weight.mul_(25.0)
    return Teacher(model)


def test_head_i_learns_what_the_target_says_i_plus_1_positions_later(teacher, tiny):
    torch.manual_seed(1)
    tokens = torch.randint(VOCABULARY, (2, 12))
    module = MedusaModule(teacher.head, frequent(tiny, PLAN, VOCABULARY), PLAN)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    lesson = teacher.lesson(tokens)
    expected = 0.0
    for head in range(2):
        rows = []
        for row in range(2):
            for position in range(12 - 1 - head):
                state = lesson.hidden[2][row, position]
                for layer in module.blocks[head].layers:
                    state = state + torch.nn.functional.silu(layer(state))
                answer = module.lm_heads[head](state).log_softmax(-1)
                said = lesson.logits[row, position + 1 + head][module.tokens].softmax(-1)
                rows.append(-(said * answer).sum())
        expected += torch.stack(rows).mean()
    assert loss_of(module, teacher, tokens).item() == pytest.approx(expected.item(), rel=0.02)


def test_the_known_tokens_are_the_most_frequent_ones(tiny):
    known = frequent(tiny, PLAN, VOCABULARY)
    assert known.tolist() == sorted(set(known.tolist()))
    left = set(range(VOCABULARY)) - set(known.tolist())
    counts = [0.3 * (tiny.code == token).mean() + 0.7 * (tiny.dialogue == token).mean() for token in range(VOCABULARY)]
    kept = [counts[token] for token in known.tolist()]
    assert max(counts[token] for token in left) <= min(kept)
    assert sum(kept) >= 0.95 > sum(kept) - min(kept)
    assert frequent(tiny, replace(PLAN, known_share=1.0), VOCABULARY).tolist() == list(range(VOCABULARY))


@pytest.mark.medium
def test_training_helps_resumes_and_writes_a_head_that_can_be_read(teacher, tiny, tmp_path):
    windows = trainer.batch(tiny, PLAN.training, 99)
    before = loss_of(MedusaModule(teacher.head, frequent(tiny, PLAN, VOCABULARY), PLAN), teacher, windows)
    said = []
    half = replace(PLAN, training=replace(PLAN.training, steps=15))
    train_medusa(HeadStage(teacher, tiny, tmp_path / "head", said.append), half)
    train_medusa(HeadStage(teacher, tiny, tmp_path / "head", said.append), PLAN)
    again = []
    train_medusa(HeadStage(teacher, tiny, tmp_path / "head", again.append), PLAN)
    assert len(said) == 2
    assert again == []
    head = LAYOUT.read(open_folder(tmp_path / "head", "head"))
    assert (head.settings["heads"], head.settings["layers"], head.settings["vocabulary"]) == (2, 2, VOCABULARY)
    module = MedusaModule(teacher.head, head.tensors["token_map"], PLAN)
    with torch.no_grad():
        for h in range(2):
            module.lm_heads[h].weight.copy_(head.tensors[f"head.{h}.weight"])
            for layer in range(2):
                module.blocks[h].layers[layer].weight.copy_(head.tensors[f"block.{h}.{layer}.weight"])
    after = loss_of(module, teacher, windows)
    assert after < before - 1
    assert "held out: position 1 0." in said[-1]
    assert "position 2 0." in said[-1]


def test_a_head_for_every_token_needs_no_map(teacher, tiny, tmp_path):
    plan = replace(PLAN, known_share=1.0, training=replace(PLAN.training, steps=1))
    train_medusa(HeadStage(teacher, tiny, tmp_path / "head", lambda text: None), plan)
    assert "token_map" not in LAYOUT.read(open_folder(tmp_path / "head", "head")).tensors


@pytest.fixture
def command(monkeypatch):
    """`python -m engine.train` with a short plan for Medusa heads."""
    trained = medusa.train_medusa
    monkeypatch.setattr(medusa, "train_medusa", lambda stage: trained(stage, PLAN))

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["engine.train", *map(str, arguments)])
        main()

    return run


@pytest.mark.medium
def test_a_head_is_trained_for_one_s_own_target_and_text(built, teacher, tmp_path, command):
    target = tmp_path / "target"
    teacher.model.save_pretrained(target)
    for path in (built / "first" / "tokenizer").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    lines = [json.dumps({"text": f"def f{i}(x):\n    return x + {i}\n" * 4}) for i in range(200)]
    lines.append(json.dumps({"messages": [{"role": "user", "content": "hi"}]}))
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    command("medusa", "--target", target, "--data", tmp_path / "text.jsonl", "--out", tmp_path / "head")
    head = LAYOUT.read(open_folder(tmp_path / "head", "head"))
    assert (head.settings["hidden"], head.settings["vocabulary"]) == (32, VOCABULARY)


@pytest.mark.parametrize(
    "arguments",
    [
        ("medusa",),
        ("medusa", "--target", "t", "--data", "d"),
        ("target", "--target", "t", "--data", "d", "--out", "o"),
        ("medusa", "medusa", "--target", "t", "--data", "d", "--out", "o"),
        ("medusa", "--work", "w", "--out", "o"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(command, arguments, capsys):
    with pytest.raises(SystemExit):
        command(*arguments)
    assert "error: " in capsys.readouterr().err
