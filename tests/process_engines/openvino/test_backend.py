"""Arms on OpenVINO GenAI: the graph's logits, equal tokens, steps and log-probabilities, and parameters in effect."""

import numpy as np
import pytest

from engine.core.types import SamplingParams
from engine.models.loading import load_model
from engine.record.trace import decode
from tests.process_engines.engines import OPENVINO, escaped, generated, only

pytestmark = only(OPENVINO)

DRAFTED = ("draft", "confident", "lookup")


@pytest.mark.parametrize("source", ["target", "draft"])
def test_the_graph_has_the_logits_of_transformers(converted, source):
    # imported here, because only the environment of the engine has it
    import openvino as ov

    model = load_model(converted[source].manifest["source"]["source"], loader="hf").model
    ids = np.random.default_rng(0).integers(3, 2000, size=(1, 40))
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = ov.Core().compile_model(converted[source].folder / "openvino_model.xml", "CPU", settings)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(40)[None]}
    ours = compiled({**inputs, "beam_idx": np.zeros(1, np.int32)})[0]
    import torch

    with torch.no_grad():
        theirs = model.network(torch.tensor(ids)).logits.numpy()
    assert np.abs(ours - theirs).max() < 1e-3


@pytest.mark.parametrize("name", DRAFTED)
def test_greedy_tokens_are_those_of_plain_decoding(arm, plain, name):
    answers = generated(arm(name), SamplingParams(max_new_tokens=32))
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in plain]
    steps = [answer.facts["speculation"]["per_step_emitted"] for answer in answers]
    assert [sum(sizes) for sizes in steps] == [len(answer.tokens) for answer in plain]
    assert max(max(sizes) for sizes in steps) > 1


@pytest.mark.parametrize("name", ["plain", *DRAFTED])
def test_log_probabilities_are_those_of_a_reference_pass(arm, name):
    engine = arm(name)
    assert engine.evidence_level() == 1
    for answer in generated(engine, SamplingParams(max_new_tokens=16)):
        reference = decode(engine.anchor(answer.request, answer.tokens).trace).logprob
        assert np.abs(decode(answer.trace).logprob - reference).max() < 1e-3


def test_settings_are_read_back_from_the_engine(arm):
    assert arm("lookup").effective_config().in_effect == {
        "speculation": "prompt_lookup",
        "max_ngram_size": 2,
        "num_assistant_tokens": 4,
    }
    confident = arm("confident").effective_config()
    assert confident.in_effect["assistant_confidence_threshold"] == 0.4
    assert confident.gamma is None
    assert arm("plain").effective_config().in_effect == {"speculation": "none"}
    assert arm("draft").effective_config().facts["engine"]["scheduler"]["enable_prefix_caching"] is False


@pytest.mark.parametrize("name", ["draft", "confident"])
def test_a_draft_model_draws_tokens_that_top_k_excludes(arm, name):
    """A defect of the engine: it accepts drafts that are not among the target's likeliest tokens."""
    assert escaped(arm, name, SamplingParams(temperature=1.0, top_k=1)) > 0


def test_the_shortest_length_holds_without_speculation_only(arm, plain):
    """A defect of the engine: it ignores min_new_tokens when it speculates."""
    asked = SamplingParams(max_new_tokens=32, min_tokens=20, stop_token_ids=(plain[0].tokens[5],))
    lengths = {name: len(generated(arm(name), asked)[0].tokens) for name in OPENVINO.arms}
    assert lengths["plain"] >= 20
    assert max(lengths[name] for name in DRAFTED) < 20


def test_counters_leave_the_last_step_out(arm, plain):
    """A defect of the engine: each step commits one token beyond the accepted ones, and the counters lack one step."""
    engine = arm("draft", counters=True)
    assert engine.evidence_level() == 0
    for answer, expected in zip(engine.generate([answer.request for answer in plain]), plain, strict=True):
        counts, problems = answer.facts["speculation"], answer.facts["reconciliation"]["mismatches"]
        assert answer.tokens == expected.tokens
        assert counts["accepted"] + counts["rejected"] == counts["drafted"] > 0
        sizes = counts["per_step_emitted"]
        assert counts["accepted"] == sum(sizes[:-1]) - len(sizes[:-1])
        assert [problem for problem in problems if not problem.startswith("counters")] == []
