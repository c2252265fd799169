"""The bundled heads are what their cards say, and the cards what the recipes say."""

import json
from dataclasses import asdict

import pytest

from engine.core.registry import HEAD_TRAINERS
from engine.heads.loading import load_head
from engine.models.loading import load_model
from engine.train.card import TRAININGS, write_head_card
from tests.bench.setting import REFERENCE


@pytest.mark.parametrize("name", sorted(TRAININGS))
def test_a_bundled_head_is_what_its_card_and_its_recipe_say(name):
    card = json.loads((REFERENCE / name / "card.json").read_text(encoding="utf-8"))
    loaded = load_head(str(REFERENCE / name))
    assert card["files"] == {file.name: file.sha256 for file in loaded.files}
    assert (card["layout"], card["family"]) == (loaded.head.layout, loaded.head.family)
    assert card["training"] == json.loads(json.dumps(asdict(TRAININGS[name])))
    assert card["target_sha256"] == load_model(str(REFERENCE / "target")).model.facts["model_sha256"]


def test_every_head_that_can_be_trained_has_a_recipe():
    assert HEAD_TRAINERS.keys() == TRAININGS.keys()


def test_a_folder_without_a_head_gets_no_card():
    with pytest.raises(ValueError, match="holds no draft head"):
        write_head_card(REFERENCE / "draft", REFERENCE / "target", {})
