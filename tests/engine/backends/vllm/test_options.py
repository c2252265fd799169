import dataclasses
from pathlib import Path

import pytest

import schemas
from engine.backends.engine_spec import EngineSpec
from engine.backends.vllm.options import OURS, ModelFolders, sampling_of, seed_of, setting_of
from engine.core.errors import InvalidRequest
from engine.core.types import Protocol, Request, SamplingParams

PLACES = ModelFolders(Path("/models/target"), {"draft": Path("/models/draft")}, 1024, "float32")
NGRAM = EngineSpec(Protocol.GREEDY, "ngram", 4, options={"prompt_lookup_max": 3})


def plan(**changes):
    return dataclasses.replace(NGRAM, **changes)


def test_a_plan_becomes_arguments_of_vllm():
    found = setting_of(plan(engine={"max_num_batched_tokens": 128, "kv_cache_gib": 0.5}), PLACES)
    arguments = found.job["arguments"]
    assert arguments["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
    wanted = {"max_num_seqs": 8, "max_model_len": 1024, "dtype": "float32", "enforce_eager": True}
    assert wanted.items() <= arguments.items()
    assert (arguments["max_num_batched_tokens"], arguments["kv_cache_memory_bytes"]) == (128, 2**29)


def test_what_was_asked_for_is_named_as_vllm_names_it():
    found = setting_of(plan(proposer="draft_model", draft="draft", options={}, protocol=Protocol.BLOCK), PLACES)
    assert found.job["arguments"]["speculative_config"]["model"] == "/models/draft"
    wanted = {"rejection_sample_method": "block", "draft_sample_method": "greedy", "num_speculative_tokens": 4}
    assert wanted.items() <= found.requested.items()
    assert "model" not in found.requested


def test_plain_decoding_has_no_draft():
    found = setting_of(EngineSpec(Protocol.GREEDY), PLACES)
    assert "speculative_config" not in found.job["arguments"]
    assert "rejection_sample_method" not in found.requested


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"proposer": "eagle"}, "proposer eagle needs a model"),
        ({"draft": "draft"}, "proposer ngram drafts without a model"),
        ({"proposer": "custom_class", "options": {}}, "module.Class"),
        ({"options": {"method": "eagle"}}, "proposer.options.method: kind and gamma set this"),
        ({"options": {"num_speculative_tokens": 2}}, "num_speculative_tokens"),
        ({"proposer": "draft_model", "draft": "draft", "others": ("draft",)}, "remove others"),
        ({"engine": {"max_seqs": 2}}, "engine.max_seqs"),
        ({"engine": {"dtype": "float64"}}, "no dtype float64"),
    ],
)
def test_a_mistake_is_named(changes, words):
    with pytest.raises(InvalidRequest, match=words):
        setting_of(plan(**changes), PLACES)


def test_engines_are_told_apart_by_what_makes_them_differ():
    one, alone, other = (setting_of(plan(**changes), PLACES) for changes in ({}, {"rows": 1}, {"gamma": 2}))
    record = setting_of(plan(options={"prompt_lookup_max": 3}, verifier_options={}), PLACES)
    assert one.key == record.key
    assert one.key != alone.key
    assert one.likeness == alone.likeness
    assert one.likeness != other.likeness
    assert (one.narrow, alone.narrow) == (False, True)


def test_settings_of_our_own_are_in_the_schema():
    assert set(OURS) <= set(schemas.load("engine-vllm")["properties"])


def test_only_what_is_on_is_asked_for():
    request = Request("a", (1, 2), SamplingParams(max_new_tokens=5))
    assert sampling_of(request, 0) == {
        "temperature": 0.0,
        "max_tokens": 5,
        "ignore_eos": False,
        "logprobs": 0,
        "bad_words": [],
        "logit_bias": [],
    }


def test_what_is_on_is_asked_for():
    on = SamplingParams(
        temperature=0.7, top_k=5, min_p=0.1, stop=("x",), logit_bias=((3, 1.0),), bad_words=((1, 2),), min_tokens=2
    )
    found = sampling_of(Request("a", (1,), on, 9), None)
    wanted = {"top_k": 5, "min_p": 0.1, "stop": ["x"], "min_tokens": 2, "logit_bias": [[3, 1.0]], "bad_words": [[1, 2]]}
    assert wanted.items() <= found.items()
    assert found["seed"] == seed_of(Request("b", (1,), on, 9), 8)


def test_every_stream_and_every_seed_has_a_seed_of_its_own():
    def seeded(seed, stream):
        return seed_of(Request("a", (1,), SamplingParams(temperature=1, seed=seed), stream), 8)

    found = {seeded(seed, stream) for seed in range(4) for stream in (0, 1, 2**64 - 1)}
    assert len(found) == 12
    assert all(0 <= each < 2**63 for each in found)
