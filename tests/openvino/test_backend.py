"""Arms on OpenVINO GenAI: the graph's logits, equal tokens, steps and log-probabilities, and parameters in effect."""

from dataclasses import replace

import numpy as np
import pytest

from engine.backends.engine_spec import EngineSpec
from engine.backends.interface import Prompt
from engine.core.errors import ModelError
from engine.core.types import FinishReason, Protocol, Request, SamplingParams
from engine.models.loading import load_model
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from engine.sampling.transforms import transform

pytestmark = pytest.mark.openvino

TEXTS = ("def add(a, b):\n    return a + b\n\ndef add3(a, b, c):\n", '{"name": "Ada", "name": "', "one two one two one")
ARMS = {
    "plain": {},
    "draft": {"proposer": "draft_model", "gamma": 4, "draft": "draft"},
    "confident": {
        "proposer": "draft_model",
        "gamma": 4,
        "draft": "draft",
        "options": {"assistant_confidence_threshold": 0.4},
    },
    "lookup": {"proposer": "prompt_lookup", "gamma": 4, "options": {"max_ngram_size": 2}},
}
DRAFTED = ("draft", "confident", "lookup")


@pytest.fixture(scope="module")
def arm(backend, engine_settings):
    def opened(name, protocol=Protocol.GREEDY, rows=1, **more):
        return backend.arm(EngineSpec(protocol, rows=rows, engine={**engine_settings, **more}, **ARMS[name]))

    return opened


def generated(engine, sampling):
    requests = [
        Request(f"r{at}", engine.encode(Prompt(text=text)), sampling, stream_of(str(at)))
        for at, text in enumerate(TEXTS)
    ]
    answers = list(engine.generate(requests))
    assert [answer.facts["reconciliation"]["mismatches"] for answer in answers] == [[]] * len(TEXTS)
    return answers


@pytest.fixture(scope="module")
def plain(arm):
    return generated(arm("plain"), SamplingParams(max_new_tokens=32))


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
    assert engine.capabilities().level == 1
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


def escaped(arm, name, sampling):
    """Tokens of probability 0, by the rows of a reference pass, as the parameters transform them here."""
    engine, count = arm(name, Protocol.CHAIN), 0
    for answer in generated(engine, replace(sampling, max_new_tokens=24)):
        raw = replace(answer.request, sampling=SamplingParams(max_new_tokens=24))
        rows = decode(arm(name).anchor(raw, answer.tokens).trace).logits
        history = list(answer.request.prompt)
        for row, token in zip(rows, answer.tokens, strict=True):
            p = transform(row, history, len(answer.request.prompt), sampling, engine.target.eos_ids).p
            count += p[token] == 0
            history.append(token)
    return count


@pytest.mark.parametrize("name", ["plain", "lookup"])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(temperature=1.0, top_k=20, top_p=0.9, repetition_penalty=1.3),
        SamplingParams(temperature=1.0, min_p=0.1, presence_penalty=1.0, frequency_penalty=0.5),
        SamplingParams(temperature=1.0, repetition_penalty=2.0, presence_penalty=0.5),
    ],
    ids=["top_k", "top_p", "min_p", "penalties"],
)
def test_no_token_escapes_the_parameters(arm, name, sampling):
    assert escaped(arm, name, sampling) == 0


@pytest.mark.parametrize("name", ["draft", "confident"])
def test_a_draft_model_draws_tokens_that_top_k_excludes(arm, name):
    """A defect of the engine: it accepts drafts that are not among the target's likeliest tokens."""
    assert escaped(arm, name, SamplingParams(temperature=1.0, top_k=1)) > 0


def test_a_seed_gives_the_tokens_of_plain_sampling_with_looked_up_drafts(arm):
    asked = SamplingParams(temperature=0.8, max_new_tokens=32)
    drafted, again, undrafted = (generated(arm(name, Protocol.CHAIN), asked) for name in ("lookup", "lookup", "plain"))
    assert [answer.tokens for answer in drafted] == [answer.tokens for answer in undrafted]
    assert [answer.tokens for answer in again] == [answer.tokens for answer in drafted]
    other = generated(arm("plain", Protocol.CHAIN), replace(asked, seed=1))
    assert [answer.tokens for answer in other] != [answer.tokens for answer in undrafted]


@pytest.mark.parametrize("name", ["plain", *DRAFTED])
def test_a_stop_token_ends_the_answer(arm, plain, name):
    stop = plain[0].tokens[5]
    at = plain[0].tokens.index(stop)
    answer = generated(arm(name), SamplingParams(max_new_tokens=32, stop_token_ids=(stop,)))[0]
    assert answer.tokens == plain[0].tokens[: at + 1]
    assert answer.finish_reason is FinishReason.STOP


def test_the_shortest_length_holds_without_speculation_only(arm, plain):
    """A defect of the engine: it ignores min_new_tokens when it speculates."""
    asked = SamplingParams(max_new_tokens=32, min_tokens=20, stop_token_ids=(plain[0].tokens[5],))
    lengths = {name: len(generated(arm(name), asked)[0].tokens) for name in ARMS}
    assert lengths["plain"] >= 20
    assert max(lengths[name] for name in DRAFTED) < 20


def test_counters_leave_the_last_step_out(arm, plain):
    """A defect of the engine: each step commits one token beyond the accepted ones, and the counters lack one step."""
    engine = arm("draft", counters=True)
    assert engine.capabilities().level == 0
    for answer, expected in zip(engine.generate([answer.request for answer in plain]), plain, strict=True):
        counts, problems = answer.facts["speculation"], answer.facts["reconciliation"]["mismatches"]
        assert answer.tokens == expected.tokens
        assert counts["accepted"] + counts["rejected"] == counts["drafted"] > 0
        sizes = counts["per_step_emitted"]
        assert counts["accepted"] == sum(sizes[:-1]) - len(sizes[:-1])
        assert [problem for problem in problems if not problem.startswith("counters")] == []


def test_a_folder_of_another_model_is_refused(backend, converted):
    engine = {"openvino": {"target": str(converted["draft"].folder)}}
    with pytest.raises(ModelError, match="converted from another model than bundled:target"):
        backend.arm(EngineSpec(Protocol.GREEDY, engine=engine))
