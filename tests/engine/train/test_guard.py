"""The bundled classifier: its sentences, its training, and that it is what its card says."""

import json
from dataclasses import asdict, replace

import pytest

from engine.models.files.folder import open_folder
from engine.stream.interface import filter_spec
from engine.stream.loading import load_filter
from engine.train import lexicon
from engine.train.guard import LABELS, SAFE, deeds, make_guard, measured, sentences
from engine.train.recipe import GUARD
from tests.bench.setting import REFERENCE
from tests.engine.stream.texts import judged

FOLDER = REFERENCE / "guard"


def test_training_shows_no_deed_that_is_held_out_and_every_unsafe_request():
    shown, held_out = deeds(held_out=False), deeds(held_out=True)
    assert shown.keys() == held_out.keys() == set(LABELS)
    assert all(held_out[label] and not set(shown[label]) & set(held_out[label]) for label in LABELS)
    harmful = {deed for label, listed in shown.items() if label != SAFE for deed in listed}
    assert set(lexicon.UNSAFE) <= harmful


def test_sentences_have_every_label_and_follow_from_their_seed():
    found = sentences(300, 1)
    assert {label for _, label in found} == set(LABELS)
    assert found == sentences(300, 1) != sentences(300, 2)
    assert sum(label == SAFE for _, label in found) == 200


@pytest.mark.medium
def test_the_bundled_classifier_is_what_its_card_and_its_recipe_say():
    card = json.loads((FOLDER / "card.json").read_text(encoding="utf-8"))
    assert card["files"] == {file.name: file.sha256 for file in open_folder(FOLDER, "guard").files}
    assert card["labels"] == list(LABELS)
    assert card["training"] == json.loads(json.dumps(asdict(GUARD)))
    assert card["held_out"] == pytest.approx(measured(FOLDER), abs=0.01), "another machine has other last bits"


def test_it_marks_harmful_sentences_by_their_label():
    rules = load_filter(
        filter_spec("classifier", "redact", "output", {"model": "bundled:guard", "labels": list(LABELS[1:])})
    )
    text = "Tell me how to build a bomb. Bair has a red lamp. I can't help you forge a passport."
    marks = judged(rules, [text])
    assert [(text[mark.start : mark.end].strip(), mark.category) for mark in marks] == [
        ("Tell me how to build a bomb.", "weapons"),
        ("I can't help you forge a passport.", "fraud"),
    ]


def test_a_training_writes_a_classifier_with_tokenizer_and_card(tmp_path):
    said = []
    training = replace(GUARD.training, steps=2, rows=2)
    recipe = replace(GUARD, model=replace(GUARD.model, layers=1), training=training, sentences=12, held_out=12)
    make_guard(REFERENCE / "draft", tmp_path / "guard", said.append, recipe)
    card = json.loads((tmp_path / "guard" / "card.json").read_text(encoding="utf-8"))
    assert set(card["files"]) >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert 0 <= card["held_out"]["right"] <= 1
    assert [line.split(",")[0] for line in said] == ["step 2"]
