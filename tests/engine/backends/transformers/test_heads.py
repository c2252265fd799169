"""DFlash drafters and MTP modules, tiny and untrained, in the form that transformers reads."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MuseGlimmerAssistantConfig,
    MuseGlimmerAssistantModel,
)

from engine.core.errors import InvalidRequest, ModelError
from engine.core.types import Protocol, QKind, SamplingParams
from engine.record.trace import decode
from tests.engine.backends.transformers.family import GREEDY, VOCABULARY, plan, run, workshop_of

WARM = SamplingParams(temperature=1.0, max_new_tokens=20, seed=2)
HIDDEN = 32


@pytest.fixture(scope="module")
def drafting(home):
    """The family with a DFlash drafter beside it."""
    torch.manual_seed(0)
    config = MuseGlimmerAssistantConfig(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=96,
        sliding_window=64,
        block_size=4,
        mask_token_id=3,
        target_layer_ids=[0, 1],
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    MuseGlimmerAssistantModel(config).save_pretrained(home / "dflash")
    return workshop_of(home, "draft", "dflash")


def dflash(protocol=Protocol.CHAIN, gamma=3):
    return replace(plan("dflash", protocol), draft="dflash", gamma=gamma)


@pytest.fixture(scope="module")
def predicting(home):
    """A target whose last layer is an MTP module: transformers knows such layers by their number."""
    torch.manual_seed(1)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 48, "moe_intermediate_size": 16, "num_attention_heads": 2}
    heads = {"num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": 8}
    experts = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    rest = {"qk_nope_head_dim": 8, "max_position_embeddings": 96, "first_k_dense_replace": 2, "eos_token_id": 0}
    config = DeepseekV3Config(vocab_size=VOCABULARY, num_hidden_layers=3, **sizes, **heads, **experts, **rest)
    folder = home / "mtp"
    DeepseekV3ForCausalLM(config).save_pretrained(folder)
    tensors, own = load_file(folder / "model.safetensors"), "model.layers.2."
    tensors |= {f"{own}{name}.weight": torch.ones(HIDDEN) for name in ("enorm", "hnorm", "shared_head.norm")}
    tensors[f"{own}eh_proj.weight"] = torch.randn(HIDDEN, 2 * HIDDEN) * 0.2
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    document |= {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    AutoTokenizer.from_pretrained(home / "target").save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeepseekV3ForCausalLM, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.2.*"])
        yield open_target(home, "mtp")


def open_target(home, name):
    from engine.backends import open_backend
    from engine.backends.engine_spec import ModelSource

    return open_backend("transformers", {"target": ModelSource(name, base=home)})


def mtp(protocol=Protocol.CHAIN, gamma=1):
    return replace(plan("mtp", protocol), gamma=gamma)


def drafts_are_recorded(backend, arm, plain):
    """Greedy tokens are those of plain generation, sampled drafts have the q that they were drawn from."""
    alone = run(backend.arm(plain), GREEDY)
    beside = run(backend.arm(replace(arm, protocol=Protocol.GREEDY)), GREEDY)
    assert [each.facts.get("error") for each in beside] == [None] * len(alone)
    assert [each.tokens for each in beside] == [each.tokens for each in alone]
    drafted = 0
    for generation in run(backend.arm(arm), WARM):
        assert generation.facts["reconciliation"]["mismatches"] == []
        trace = decode(generation.trace)
        assert set(trace.q_kind.tolist()) <= {QKind.FULL, QKind.NONE}
        assert trace.n_drafted.max() == arm.gamma
        ratio = trace.examined_p / trace.examined_q
        clear = np.abs(trace.examined_uniform - ratio) > 1e-5
        accepted = trace.examined_uniform <= ratio
        assert np.array_equal(accepted[clear], trace.examined_accepted.astype(bool)[clear])
        drafted += int(clear.sum())
    assert drafted > 20


@pytest.mark.medium
def test_a_dflash_drafter_is_recorded(drafting):
    drafts_are_recorded(drafting, dflash(), plan(None, Protocol.GREEDY))
    facts = {each.name: each for each in drafting.models()}
    assert len(facts["dflash"].sha256) == 64


@pytest.mark.medium
def test_mtp_modules_are_recorded(predicting):
    drafts_are_recorded(predicting, mtp(), plan(None, Protocol.GREEDY))


def test_the_draft_length_is_the_model_s(drafting, predicting):
    with pytest.raises(InvalidRequest, match="the drafter's block is 4; set gamma to 3"):
        drafting.arm(dflash(gamma=4))
    with pytest.raises(InvalidRequest, match="the target drafts 1 tokens; set gamma to 1"):
        predicting.arm(mtp(gamma=2))


def test_a_drafter_is_no_draft_model(drafting):
    with pytest.raises(InvalidRequest, match="use proposer dflash"):
        drafting.arm(replace(plan("draft_model"), draft="dflash"))


def test_a_drafter_that_transformers_does_not_have_is_named(home, tmp_path):
    folder = tmp_path / "strange"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((home / "draft" / name).read_bytes())
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    document |= {"block_size": 4, "mask_token_id": 1, "target_layer_ids": [0], "model_type": "nobody_s"}
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ModelError, match="the installed transformers has no such drafter"):
        workshop_of(home, str(folder))


def test_universal_is_for_vocabularies_of_another_size(drafting):
    with pytest.raises(InvalidRequest, match="use proposer draft_model, or a draft of another size"):
        drafting.arm(replace(plan("universal"), draft="draft"))
