"""A target with sliding windows, whose state the built-in engine cannot take back: transformers decodes it, and the
reference pass reads it.
"""

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from engine.backends import open_backend
from engine.backends.engine_spec import ModelSource
from engine.core.errors import ModelError
from engine.core.types import Protocol
from engine.record.trace import decode
from engine.train.corpus import train_tokenizer
from tests.engine.backends.transformers.family import GREEDY, SAMPLED, TEXTS, VOCABULARY, plan, run
from tests.support.random_models import save

WINDOW = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("windows")
    tokenizer = train_tokenizer(TEXTS, VOCABULARY)
    for seed, (name, layers) in enumerate((("target", 2), ("draft", 1))):
        torch.manual_seed(seed)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
        ids = {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 2, "head_dim": 8, "tie_word_embeddings": True}
        lengths = {"max_position_embeddings": 96, "sliding_window": WINDOW, "num_hidden_layers": layers}
        model = MistralForCausalLM(MistralConfig(vocab_size=len(tokenizer), **sizes, **ids, **lengths))
        save(model, tokenizer, home / name)
    return home


def opened(folder, backend):
    names = ("target", "draft")
    loader = {"loader": "hf"} if backend == "native" else {}
    return open_backend(backend, {name: ModelSource(name, base=folder, **loader) for name in names})


@pytest.mark.medium
def test_assistance_gives_the_tokens_of_plain_generation_beyond_the_window(folder):
    backend = opened(folder, "transformers")
    plain = run(backend.arm(plan(None, Protocol.GREEDY)), GREEDY)
    assisted = run(backend.arm(plan("draft_model", Protocol.GREEDY)), GREEDY)
    assert [generation.tokens for generation in assisted] == [generation.tokens for generation in plain]
    assert max(len(generation.tokens) for generation in plain) > WINDOW
    assert sum(int(decode(generation.trace).n_drafted.sum()) for generation in assisted) > 0


@pytest.mark.medium
def test_the_reference_reads_the_rows_that_were_sampled_from(folder):
    backend = opened(folder, "transformers")
    engine = backend.arm(plan("draft_model"))
    reader = backend.arm(plan(None, Protocol.GUMBEL))
    for generation in run(engine, SAMPLED):
        rows = decode(generation.trace).logits
        again = decode(reader.anchor(generation.request, generation.tokens).trace).logits
        np.testing.assert_allclose(rows, again, atol=2e-3)


def test_the_built_in_engine_still_refuses_it(folder):
    with pytest.raises(ModelError, match="sliding_window 8 is smaller than the context"):
        opened(folder, "native")
