"""The packaged suite of features: the cells of the page and what they rest on; a mix-up of adapters is found."""

from dataclasses import replace

import pytest
import torch

from engine.core.errors import ModelError
from engine.core.types import Protocol, SamplingParams
from engine.record.trace import decode

from .arms import NGRAM, answered, backend, plan, requests
from .packaged import assert_as_the_page_says

pytestmark = pytest.mark.vllm

PROMPTS = [tuple(range(40 + 7 * i, 70 + 9 * i)) for i in range(8)]


def test_every_cell_is_as_the_page_says(tmp_path):
    assert_as_the_page_says(tmp_path, "features")


def test_your_own_logits_processors_are_refused_with_a_draft():
    vllm = backend()
    asked = plan("ngram", options=NGRAM, engine={"logits_processors": ["tests.vllm.processors:Unchanged"]})
    try:
        with pytest.raises(ModelError, match="not supported when speculative decoding is enabled"):
            vllm.arm(asked).effective_config()
    finally:
        vllm.close()


@pytest.fixture(scope="module")
def served():
    """Requests of two adapters and of none in one batch."""
    vllm = backend()
    settings = {"adapters": {"one": "made:1", "two": "made:2"}, "request": {"adapter": ["one", "two", None]}}
    engine = vllm.arm(plan("ngram", options=NGRAM, engine=settings))
    yield engine, answered(engine, requests(PROMPTS, lengths=(12,)))
    vllm.close()


def test_the_record_states_the_adapter_of_every_request(served):
    engine, found = served
    accounts = [each.facts["request"] for each in found.values()]
    assert {each["requested"]["adapter"] for each in accounts} == {"one", "two", None}
    assert all(each["effective"] == each["requested"] for each in accounts)
    digests = engine.effective_config().facts["adapters"]
    named = {each["requested"]["adapter"]: each.get("adapter_sha256") for each in accounts}
    assert named == {None: None} | {name: digests[name]["sha256"] for name in ("one", "two")}


def test_a_request_of_the_target_alone_is_found_to_be_served_with_an_adapter(served):
    """Its own account is right, and its rows are not those of the target: vLLM 0.32 on a CPU."""
    engine, found = served
    alone = [each for each in found.values() if each.facts["request"]["requested"]["adapter"] is None]
    assert max(distance(each, engine.anchor(each.request, each.tokens)) for each in alone) > 0.1


def distance(generation, anchor):
    ours, theirs = generation.facts["logprobs"], decode(anchor.trace).logprob.tolist()
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def test_requests_of_a_higher_priority_start_first():
    vllm = backend()
    slots = 2
    settings = {"scheduling_policy": "priority", "max_num_seqs": slots, "request": {"priority": [5, 0]}}
    engine = vllm.arm(plan("ngram", options=NGRAM, engine=settings))
    try:
        found = answered(engine, requests(PROMPTS, lengths=(12,)))
    finally:
        vllm.close()
    starts = {0: [], 5: []}
    for each in found.values():
        starts[each.facts["request"]["effective"]["priority"]].append(each.facts["rounds"][0][0])
    # the first to arrive take the slots, whatever their priority; by arrival alone the last to start would be a 0
    waited = sorted(starts[5])[slots:]
    assert waited
    assert max(starts[0]) < min(waited)


def test_a_sampled_request_without_a_seed_has_no_generator_and_draws_anew():
    vllm = backend()
    engine = vllm.arm(
        plan("ngram", Protocol.CHAIN, options=NGRAM, engine={"repair": "all", "request": {"unseeded": True}})
    )
    asked = requests(PROMPTS, SamplingParams(temperature=1.0), lengths=(24,))
    try:
        first, again = answered(engine, asked), answered(engine, asked)
    finally:
        vllm.close()
    assert all(each.facts["request"]["effective"] == {"unseeded": True} for each in first.values())
    assert any(first[name].tokens != again[name].tokens for name in first)


LONG = [tuple(range(40 + 9 * i, 220 + 25 * i)) for i in range(4)]
IN_PARTS = {"enable_chunked_prefill": True, "max_num_batched_tokens": 64, "enable_prefix_caching": False, "restarts": 0}


def in_parts(vllm, rows=4, **engine):
    """Sampled answers to long prompts, without a draft."""
    asked = replace(plan(None, Protocol.GUMBEL, engine={**IN_PARTS, **engine}), rows=rows)
    return answered(vllm.arm(asked), requests(LONG, SamplingParams(temperature=1.0), lengths=(12,)))


def test_a_long_prompt_with_a_seed_ends_an_engine_on_a_cpu_and_a_repaired_one_answers_it():
    """With the same numbers alone and in a batch, where other steps read the parts."""
    vllm = backend()
    try:
        together, alone = (in_parts(vllm, rows, repair="chunked_seed") for rows in (4, 1))
        assert {name: each.tokens for name, each in together.items()} == {
            name: each.tokens for name, each in alone.items()
        }
        stock = [each.facts["error"]["message"] for each in in_parts(vllm).values() if "error" in each.facts]
    finally:
        vllm.close()
    assert any("offset" in each for each in stock) is not offsets()


def offsets():
    """Whether generators on CPUs have an offset: asked of torch, not of its version."""
    try:
        torch.Generator().get_offset()
    except RuntimeError:
        return False
    return True
