"""A draft for one's own target: distillation raises its acceptance, a resumed training is the training, mistakes."""

import itertools
import json
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from engine.models.loading import check_same_tokenizer, load_model
from engine.train import __main__ as command
from engine.train import own_draft, trainer
from engine.train.corpus import Corpus
from engine.train.heads.head_layer import HeadStage, Teacher, load_teacher, open_target
from engine.train.own_draft import Lessons, OwnText, TokenText, kept_layers, pieces, sampled_loss, train_draft
from engine.train.passes import PositionLogits
from engine.train.recipe import OWN_DRAFT, TrainRecipe

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
VOCABULARY = 330
"""Of the tiny tokenizer."""


def random_target(kind, folder=None, tokenizer=None):
    """Four layers of random weights, untied, in a folder with a tokenizer."""
    torch.manual_seed(1)
    config = CONFIGS[kind](
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.2,
        eos_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(3)  # distributions with favourites
    if folder is not None:
        model.save_pretrained(folder)
        for path in tokenizer.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    return Teacher(model)


@torch.no_grad()
def own_answers(teacher, count, length=24):
    """Samples of the target after three random tokens."""
    torch.manual_seed(2)
    tokens = torch.randint(1, VOCABULARY, (count, 3))
    for _ in range(length):
        tokens = torch.cat([tokens, torch.multinomial(teacher.model(tokens).logits[:, -1].softmax(-1), 1)], 1)
    texts = [TokenText(tuple(row), 3) for row in tokens.tolist()]
    return OwnText(tuple(texts[10:]), tuple(texts[:10]))


def recorded(text):
    """A line as `audit query texts` writes it: the answer as steps of one rejected and one emitted token."""
    steps = [[7, token] for token in text.tokens[text.answer :]]
    return json.dumps(
        {
            "case_id": "a",
            "prompt_ids": json.dumps(text.tokens[: text.answer]),
            "token": json.dumps(steps),
            "role": json.dumps(["RC"] * len(steps)),
        }
    )


def trained(target, out, report=lambda line: None):
    """A training of a minute by a clock that ticks a second per step."""
    teacher, ticks = load_teacher(target), itertools.count()
    text = own_answers(teacher, 200)
    return train_draft(HeadStage(teacher, text.corpus(), out, report, 1.0, lambda: next(ticks)), text, layers=2)


@pytest.fixture
def tokenizer(built):
    return built / "first" / "tokenizer"


@pytest.mark.medium
@pytest.mark.parametrize("kind", CONFIGS)
def test_distillation_raises_the_acceptance_of_the_target_s_own_samples(tmp_path, tokenizer, kind):
    target, out = tmp_path / "target", tmp_path / "draft"
    random_target(kind, target, tokenizer)
    lines = []
    measured = trained(target, out, report=lines.append)
    assert measured["after"]["acceptance"] > measured["before"]["acceptance"] + 0.04
    assert measured["after"]["argmax agreement"] > measured["before"]["argmax agreement"]
    assert any("min left" in line and "acceptance" in line for line in lines)
    loaded = [load_model(str(folder)) for folder in (target, out)]
    check_same_tokenizer(*loaded)
    assert loaded[1].model.facts["architecture"] == kind
    again = load_teacher(out)
    assert again.config.layers == 2
    held = Lessons(load_teacher(target), own_answers(random_target(kind), 200).held)
    assert held.measure(again.model)["acceptance"] == pytest.approx(measured["after"]["acceptance"], abs=0.01)


class Interrupted(Exception):
    pass


@pytest.mark.medium
def test_a_resumed_training_ends_with_the_same_draft(tmp_path, tokenizer):
    target = tmp_path / "target"
    random_target("llama", target, tokenizer)
    trained(target, tmp_path / "whole")
    seen = []

    def report(line):
        seen.append(line)
        if len([line for line in seen if line.startswith("step")]) == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        trained(target, tmp_path / "halves", report=report)
    assert not (tmp_path / "halves").exists()
    lines = []
    trained(target, tmp_path / "halves", report=lines.append)
    assert any(line.startswith("step 30,") for line in lines)
    assert not any(line.startswith("step 24,") for line in lines)
    whole, halves = (load_teacher(tmp_path / name).model.state_dict() for name in ("whole", "halves"))
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


@pytest.mark.medium
def test_the_best_draft_is_kept_not_the_last(tmp_path, tokenizer, monkeypatch):
    target = tmp_path / "target"
    random_target("llama", target, tokenizer)
    scores, states = iter([0.1, 0.2, 0.9, 0.3, *[0.2] * 20]), []
    measure = Lessons.measure

    def scored(lessons, draft):
        states.append({name: value.clone() for name, value in draft.state_dict().items()})
        return measure(lessons, draft) | {"acceptance": next(scores)}

    monkeypatch.setattr(Lessons, "measure", scored)
    trained(target, tmp_path / "out")
    best, next_one = ({name: value.to(torch.bfloat16) for name, value in state.items()} for state in states[2:4])
    assert all(torch.equal(value, best[name]) for name, value in states[-1].items())
    assert not all(torch.equal(value, next_one[name]) for name, value in states[-1].items())


def test_the_first_and_the_last_layers_are_kept():
    assert kept_layers(30, 6) == (0, 1, 2, 27, 28, 29)
    assert kept_layers(4, 3) == (0, 1, 3)
    assert kept_layers(4, 1) == (0,)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_pruned_model_has_the_chosen_layers_and_everything_else(kind):
    source = random_target(kind).model
    pruned = trainer.prune(source, (1, 3))
    assert type(pruned) is type(source)
    tensors = pruned.state_dict()
    renamed = {"model.layers.1.": "model.layers.0.", "model.layers.3.": "model.layers.1."}
    for name, tensor in source.state_dict().items():
        place = next((old for old in renamed if name.startswith(old)), None)
        if place:
            assert torch.equal(tensors.pop(renamed[place] + name.removeprefix(place)), tensor)
        elif ".layers." not in name:
            assert torch.equal(tensors.pop(name), tensor)
    assert not tensors


def test_a_comparison_is_that_of_each_text_alone():
    teacher, draft = random_target("llama"), trainer.prune(random_target("llama").model, (0, 1)).eval()
    texts = [TokenText((5, 6, 7, 8), 2), TokenText((9, 4, 3, 2, 1, 8), 1)]
    said = Lessons(teacher, texts).compare(draft, [0, 1])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        alone = [model(torch.tensor([text.tokens])).logits[0] for model in (teacher.model, draft) for text in texts]
    for logits, first, second in ((said.target, *alone[:2]), (said.draft, *alone[2:])):
        torch.testing.assert_close(logits, torch.cat([first[1:3], second[:5]]).float(), atol=0.1, rtol=0.05)


def test_a_drawn_part_of_the_vocabulary_estimates_the_loss(monkeypatch):
    teacher, draft = random_target("llama"), trainer.prune(random_target("llama").model, (0, 1)).eval()
    lessons = Lessons(teacher, [TokenText(tuple(range(40)))] * 12)
    likely = lessons.compare(draft, [0]).target.softmax(-1).amax(0).topk(150).indices.sort().values.numpy()
    whole = sampled_loss(lessons, draft, [0], likely).item()
    assert whole == lessons.compare(draft, [0]).loss().item()
    monkeypatch.setattr(own_draft, "DRAWN", 60)
    # the number of a text decides which tokens are drawn, and these texts are equal
    parts = [sampled_loss(lessons, draft, [i], likely).item() for i in range(12)]
    assert len(set(parts)) == 12
    assert np.mean(parts) == pytest.approx(whole, rel=0.03)


def test_long_texts_are_cut_and_prompts_without_an_answer_left_out():
    text = TokenText(tuple(range(10)), 6)
    assert pieces([text], 4) == [TokenText((4, 5, 6, 7), 2), TokenText((8, 9), 1)]
    assert pieces([TokenText((1,))], 4) == []


def test_every_epoch_has_every_text_once():
    lessons = Lessons(random_target("llama"), [TokenText((1, 2))] * 5)
    numbers = torch.cat([lessons.batch(step) for step in range(5)]).tolist()
    assert len(numbers) == 5 * OWN_DRAFT.rows
    assert all(sorted(numbers[i : i + 5]) == [0, 1, 2, 3, 4] for i in range(0, len(numbers), 5))
    assert numbers[:5] != numbers[5:10]


def test_the_same_favourite_is_counted():
    said = PositionLogits(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[0.0, 2.0], [0.0, 1.0]]))
    assert said.same_favourite() == 0.5


def test_a_head_can_be_trained_within_a_time(tmp_path, teacher, stream):
    module = torch.nn.Linear(1, 1)
    lines = []
    HeadStage(teacher, stream, tmp_path / "head", lines.append, minutes=1e-4).train(
        module,
        TrainRecipe(steps=10**9, learning_rate=0.1, rows=1, window=4),
        loss=lambda tokens: module(torch.ones(1)).sum(),
        measure=lambda: {"ones": 1.0},
    )
    assert lines[-1].startswith("step ")
    assert "0.0 min left" in lines[-1]


def test_a_checkpoint_of_another_training_is_refused(tmp_path, teacher, stream):
    def train(width):
        module = torch.nn.Linear(width, 1)
        HeadStage(teacher, stream, tmp_path / "head", lambda line: None).train(
            module,
            TrainRecipe(steps=1, learning_rate=0.1, rows=1, window=4),
            loss=lambda tokens: module(torch.ones(width)).sum(),
            measure=dict,
        )

    train(1)
    with pytest.raises(own_draft.ModelError, match=r"checkpoint.safetensors: belongs to another training"):
        train(2)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    (tmp_path / "checkpoint.safetensors").write_bytes(b"half")
    module = torch.nn.Linear(1, 1)
    with pytest.raises(own_draft.ModelError, match=r"checkpoint\.safetensors: not readable"):
        trainer.restore(module, torch.optim.AdamW(module.parameters()), tmp_path)


@pytest.fixture
def home(tmp_path, tokenizer, monkeypatch):
    """A target, text of its own, and a smaller need for it."""
    teacher = random_target("llama", tmp_path / "target", tokenizer)
    monkeypatch.setattr(own_draft, "MIXTURE", 100)
    text = own_answers(teacher, 40, 8)
    (tmp_path / "text.jsonl").write_text("\n".join(map(recorded, (*text.held, *text.kept))))
    return tmp_path


def run(monkeypatch, home, **changes):
    """The command with options changed; None leaves one out."""
    options = {
        "target": home / "target",
        "data": home / "text.jsonl",
        "out": home / "draft",
        "minutes": 0.001,
    } | changes
    words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["engine.train", "draft", *words])
    command.main()


@pytest.mark.medium
def test_the_command_writes_a_draft_and_prints_the_lines_of_a_suite(home, monkeypatch, capsys):
    run(monkeypatch, home)
    run(monkeypatch, home)  # a finished training is only written again
    captured = capsys.readouterr()
    assert "proposer: {kind: draft_model, model: draft, gamma: 4}" in captured.out
    assert captured.out.count(f'draft: "{home / "draft"}"') == 2
    assert captured.err.count("held-out before: acceptance 0.") == captured.err.count("held-out after: ") == 2
    assert load_teacher(home / "draft").config.layers == 1


def without_tokenizer(home):
    for path in (home / "target").iterdir():
        if "token" in path.name or "chat" in path.name:
            path.unlink()


def gpt2(home):
    (home / "target" / "config.json").write_text('{"model_type": "gpt2"}')


def occupied(home):
    (home / "draft").mkdir()
    (home / "draft" / "notes.txt").write_text("mine")


def elsewhere(home):
    (home / "text.jsonl").write_text(recorded(TokenText((1, 2, 3, VOCABULARY), 2)))


MISTAKES = {
    "no folder": (lambda home: None, {"target": "nowhere"}, "nowhere: no such folder"),
    "no file": (lambda home: None, {"data": "nowhere.jsonl"}, "No such file or directory: 'nowhere.jsonl'"),
    "not text": (lambda home: (home / "text.jsonl").write_bytes(b"\xff\xfe"), {}, "codec can't decode"),
    "not JSON": (lambda home: (home / "text.jsonl").write_text("{"), {}, "text.jsonl:1: not a text (Expecting"),
    "no tokenizer": (without_tokenizer, {}, "target: no tokenizer; add tokenizer.json"),
    "architecture": (gpt2, {}, "cannot train for model_type 'gpt2'; only llama, qwen2, qwen3"),
    "layers": (lambda home: None, {"layers": 4}, "--layers 4: "),
    "no layers": (lambda home: None, {"layers": 0}, "keep at least 1 and at most 3"),
    "occupied": (occupied, {}, "draft: not an empty folder, and no training of ours is beside it"),
    "a file": (lambda home: (home / "draft").write_text(""), {}, "draft: not an empty folder"),
    "little text": (lambda home: (home / "text.jsonl").write_text('{"text": "a"}'), {}, "0 tokens to train on"),
    "another model": (elsewhere, {}, f"text.jsonl:1: another model's; the target has only {VOCABULARY} tokens"),
    "no time": (lambda home: None, {"minutes": 0}, "--minutes 0.0: give a number above 0"),
    "no data": (lambda home: None, {"data": None}, "with --target, --data and --out"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(home, monkeypatch, capsys, mistake):
    spoil, changes, words = MISTAKES[mistake]
    spoil(home)
    before = sorted(home.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, home, **changes)
    assert ended.value.code == 2
    line = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
    assert line.startswith(("engine.train: error: ", "python -m engine.train: error: "))
    assert words in line
    assert sorted(home.rglob("*")) == before


def test_recorded_requests_are_texts_without_duplicates_held_out_by_prompt(home):
    teacher = load_teacher(home / "target")
    texts = own_answers(teacher, 40, 8)
    texts = (*texts.held, *texts.kept)
    other = TokenText((*texts[0].tokens[:3], 5, 5, 5), 3)
    (home / "text.jsonl").write_text("\n".join(map(recorded, (*texts, texts[0], texts[3], other))))
    read = own_draft.load_text(home / "text.jsonl", open_target(home / "target"))
    assert read.held == (texts[0], other, texts[20])
    assert read.kept == tuple(text for text in texts if text not in read.held)
    assert isinstance(read.corpus(), Corpus)
    assert len(read.corpus().code) == sum(len(text.tokens) for text in read.kept)


def test_texts_and_messages_are_read_by_the_target_s_tokenizer(home, tokenizer):
    lines = [
        {"text": "one two"},
        {"messages": [{"role": "user", "content": "hi"}]},
        *({"text": f"x{i} " * 9} for i in range(20)),
    ]
    (home / "text.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    read = own_draft.load_text(home / "text.jsonl", open_target(home / "target"))
    loaded = load_model(str(home / "target")).tokenizer
    assert read.held[0] == TokenText((*loaded("one two", add_special_tokens=False)["input_ids"], 0))
    chat = loaded.apply_chat_template(lines[1]["messages"], tokenize=False)
    assert read.kept[0] == TokenText((*loaded(chat, add_special_tokens=False)["input_ids"], 0))
    (home / "text.jsonl").write_text('{"prompt": 1}')
    with pytest.raises(own_draft.ModelError, match=r"text\.jsonl:1: not a text \(an object with"):
        own_draft.load_text(home / "text.jsonl", open_target(home / "target"))
