"""The reference pass: the target's own rows on given tokens, and nothing of the loop's faults."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Anchoring
from engine.backends.native.backend import open_models as open_native
from engine.backends.native.scripted import open_models as open_scripted
from engine.core.errors import CapacityError, InvalidRequest
from engine.core.types import Protocol, RecordLevel, Request, Role, SamplingParams
from engine.models.loading import load_model
from engine.record.trace import decode
from engine.sampling.transforms import softmax

SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=24, seed=7)
PROMPT = (1, 5, 9, 4)
ANCHOR = EngineSpec(Protocol.GUMBEL, rows=1)
DECODES = EngineSpec(Protocol.CHAIN, "draft_model", 4, "draft")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def scripted():
    return open_scripted({"target": ModelSource("scripted:1"), "draft": ModelSource("scripted:2")})


@pytest.fixture(scope="module")
def native():
    sources = {"target": "bundled:target", "draft": "bundled:draft"}
    return open_native({name: ModelSource(source) for name, source in sources.items()})


def decoded(shop, fault=None, sampling=SAMPLED):
    plan = EngineSpec(DECODES.protocol, DECODES.proposer, DECODES.gamma, DECODES.draft, fault=fault)
    return next(iter(shop.arm(plan).generate([Request("r", PROMPT, sampling, 3)])))


def anchored(shop, generation, level=RecordLevel.FULL):
    plan = EngineSpec(Protocol.GUMBEL, rows=1, level=level)
    return shop.arm(plan).anchor(Request("a", PROMPT, generation.request.sampling, 3), generation.tokens)


def largest_distance(generation, anchor):
    pairs = zip(decode(generation.trace).logits, decode(anchor.trace).logits, strict=True)
    return max(
        0.5 * float(np.abs(softmax(a.astype(np.float64)) - softmax(b.astype(np.float64))).sum()) for a, b in pairs
    )


def test_native_backends_anchor(native, scripted):
    assert isinstance(native.arm(ANCHOR), Anchoring)
    assert isinstance(scripted.arm(ANCHOR), Anchoring)


def test_a_script_says_the_same_to_both(scripted):
    generation = decoded(scripted)
    anchor = anchored(scripted, generation)
    assert anchor.tokens == generation.tokens
    assert largest_distance(generation, anchor) == 0.0


def test_a_clean_decoder_is_a_rounding_away_from_the_reference(native):
    generation = decoded(native)
    assert 0.0 < largest_distance(generation, anchored(native, generation)) < 1e-4


@pytest.mark.medium
def test_a_broken_forward_is_far_from_the_reference(native):
    generation = decoded(native, "target_rows_shifted")
    assert largest_distance(generation, anchored(native, generation)) > 0.1


@pytest.mark.medium
def test_the_reference_is_transformers_own_whole_forward(native):
    generation = decoded(native)
    network = load_model("bundled:target", dtype="float64", loader="hf").model.network
    with torch.no_grad():
        logits = network(input_ids=torch.tensor([[*PROMPT, *generation.tokens[:-1]]])).logits[0, len(PROMPT) - 1 :]
    np.testing.assert_allclose(decode(anchored(native, generation).trace).logits, logits.numpy(), rtol=1e-6, atol=1e-6)


def test_the_record_says_that_nothing_was_drawn(scripted):
    generation = decoded(scripted)
    trace = decode(anchored(scripted, generation, RecordLevel.TOPK).trace)
    assert trace.header.level is RecordLevel.TOPK
    assert trace.steps == len(generation.tokens)
    assert set(trace.role.tolist()) == {int(Role.PLAIN)}
    assert np.all(np.isnan(trace.uniform))
    assert trace.position.tolist() == [len(PROMPT) + i for i in range(trace.steps)]


def test_penalties_and_masks_see_the_tokens_before(scripted):
    sampling = SamplingParams(temperature=1.0, max_new_tokens=24, seed=7, repetition_penalty=1.5, bad_words=((3,),))
    generation = decoded(scripted, sampling=sampling)
    trace = decode(anchored(scripted, generation).trace)
    np.testing.assert_allclose(trace.p, decode(generation.trace).p, rtol=0, atol=1e-12)


def test_the_configuration_says_what_pass_it_was(native, scripted):
    found = native.arm(ANCHOR).anchor_config().to_json()
    assert found["reference"]["dtype"] == "float64"
    assert found["reference"]["code"].startswith("transformers ")
    assert found["reference"]["model_sha256"] == found["target"]["model_sha256"]
    assert found["lossless"] is True
    assert scripted.arm(ANCHOR).anchor_config().facts["reference"]["code"] == "the script"


def test_texts_without_tokens_and_beyond_the_context_are_refused(native, scripted):
    request = Request("r", PROMPT, SAMPLED)
    with pytest.raises(InvalidRequest, match="no tokens"):
        scripted.arm(ANCHOR).anchor(request, ())
    with pytest.raises(CapacityError, match="context"):
        native.arm(ANCHOR).anchor(request, (1,) * 100_000)
