"""A tiny corpus, built once; and a target of random weights with a stream of random tokens, for trainers of heads."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.train import chat, corpus
from engine.train.corpus import Corpus
from engine.train.heads.head_layer import Teacher
from engine.train.recipe import CorpusRecipe
from tests.engine.heads.tiny import document

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


@pytest.fixture(scope="session")
def teacher():
    """Two layers over 32 tokens."""
    torch.manual_seed(1)
    sizes = {key: value for key, value in document(32).items() if key != "model_type"}
    return Teacher(LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3, tie_word_embeddings=True)))


@pytest.fixture(scope="session")
def stream():
    """3000 of its tokens; the first 800 are held out too."""
    tokens = np.random.default_rng(0).integers(0, 32, 3000).astype(np.uint16)
    return Corpus(tokens, tokens, {"held": tokens[:800]})
