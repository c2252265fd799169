"""Filter `classifier` over a tiny network with random weights."""

from importlib.resources import files
from shutil import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from engine.core.errors import InvalidRequest
from engine.stream.interface import filter_spec
from engine.stream.loading import load_filter
from tests.engine.stream.texts import judged, pieces

TEXT = "Take the red pill. It is not dangerous! Or is it? Nobody knows"
LABELS = {0: "safe", 1: "violence", 2: "drugs"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("classifier")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(str(files("engine") / "bundled" / "draft" / name), home / name)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        id2label=LABELS,
        label2id={label: index for index, label in LABELS.items()},
        initializer_range=1.0,
        pad_token_id=0,
    )
    torch.manual_seed(2)
    LlamaForSequenceClassification(config).save_pretrained(home)
    return home


def loaded(folder, **rules):
    return load_filter(filter_spec("classifier", "redact", "output", {"model": str(folder), **rules}))


def test_sentences_are_marked_as_a_whole_in_whatever_pieces_they_arrive(folder):
    rules = loaded(folder, labels=["violence", "drugs"], threshold=0.4)
    marks = judged(rules, [TEXT])
    assert marks
    assert {TEXT[mark.start : mark.end] for mark in marks} <= {
        "Take the red pill. ",
        "It is not dangerous! ",
        "Or is it? ",
        "Nobody knows",
    }
    assert all(judged(rules, pieces(TEXT, seed)) == marks for seed in range(3))
    every = judged(loaded(folder, labels=list(LABELS.values()), threshold=1e-9), [TEXT])
    assert len(every) == 4 * len(LABELS)


def test_the_digest_is_of_the_model_and_not_of_its_place(folder, tmp_path):
    for path in folder.iterdir():
        copy(path, tmp_path / path.name)
    first, second = (loaded(place, labels=["drugs"]) for place in (folder, tmp_path))
    assert first.facts == second.facts
    assert first.facts != loaded(folder, labels=["violence"]).facts


def test_mistakes_are_told(folder, tmp_path):
    for rules, said in (
        ({"labels": ["rude"]}, "has no label rude; it has safe, violence, drugs"),
        ({}, "needs labels: a list of those to mark, of safe, violence, drugs"),
        ({"labels": ["drugs"], "threshold": 2}, "threshold must be above 0 and at most 1, not 2"),
        ({"labels": ["drugs"], "model": str(tmp_path / "none")}, "no such folder"),
        ({"labels": ["drugs"], "model": 3}, "needs model: bundled:guard, or a folder"),
        ({"labels": ["drugs"], "model": "bundled:none"}, "no such bundled model; there are: .*guard"),
        ({"labels": ["drugs"], "model": "bundled:draft"}, "tensor score.weight is missing for LlamaForSequence"),
        ({"labels": ["drugs"], "window": 3}, "has no rule 'window'; it has: labels, model, threshold"),
    ):
        with pytest.raises(InvalidRequest, match=f"filter classifier.*{said}"):
            loaded(folder, **rules)
