"""A tiny corpus, built once."""

import pytest
import torch

from engine.train import chat, corpus
from engine.train.recipe import CorpusRecipe

RECIPE = CorpusRecipe(dialogues=40, held_out_dialogues=120, held_out_files=1, vocabulary=330, seed=5)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def documents():
    return [f"{chat.BOS}# file: m{i}.py\ndef f{i}(x, y={i}):\n    return x + {i} * y\n{chat.EOS}" for i in range(12)]


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Two builds of the same recipe, without reading the standard library."""
    home = tmp_path_factory.mktemp("corpus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "standard_library", documents)
        for name in ("first", "second"):
            corpus.build(RECIPE, home / name)
    return home


@pytest.fixture(scope="session")
def tiny(built):
    return corpus.load(built / "first")
