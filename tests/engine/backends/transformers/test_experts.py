"""A target that is a mixture of experts: transformers decodes it, and the reference pass reads it in float64."""

import numpy as np
import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from engine.backends import open_backend
from engine.backends.engine_spec import ModelSource
from engine.core.types import Protocol
from engine.record.trace import decode
from engine.train.corpus import train_tokenizer
from tests.engine.backends.transformers.family import GREEDY, SAMPLED, TEXTS, VOCABULARY, plan, run
from tests.support.random_models import save


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("experts")
    tokenizer = train_tokenizer(TEXTS, VOCABULARY)
    for seed, (name, layers) in enumerate((("target", 2), ("draft", 1))):
        torch.manual_seed(seed)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
        ids = {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 2, "head_dim": 8, "tie_word_embeddings": True}
        experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
        lengths = {"max_position_embeddings": 96, "num_hidden_layers": layers}
        model = MixtralForCausalLM(MixtralConfig(vocab_size=len(tokenizer), **sizes, **ids, **experts, **lengths))
        save(model, tokenizer, home / name)
    return home


def opened(folder, backend):
    loader = {"loader": "hf"} if backend == "native" else {}
    return open_backend(backend, {name: ModelSource(name, base=folder, **loader) for name in ("target", "draft")})


@pytest.mark.medium
def test_the_rows_of_the_experts_are_the_references(folder):
    backend = opened(folder, "transformers")
    reader = backend.arm(plan(None, Protocol.GUMBEL))
    for generation in run(backend.arm(plan("draft_model")), SAMPLED):
        rows = decode(generation.trace).logits
        again = decode(reader.anchor(generation.request, generation.tokens).trace).logits
        np.testing.assert_allclose(rows, again, atol=2e-3)


@pytest.mark.medium
def test_the_built_in_loop_decodes_the_same_tokens(folder):
    theirs, ours = (
        {generation.request.id: generation.tokens for generation in run(opened(folder, backend).arm(spec), GREEDY)}
        for backend, spec in (
            ("transformers", plan(None, Protocol.GREEDY)),
            ("native", plan("draft_model", Protocol.GREEDY)),
        )
    )
    assert ours == theirs
