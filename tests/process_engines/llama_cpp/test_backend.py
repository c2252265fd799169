"""Arms on llama.cpp: converted weights, equal tokens, accounts that agree, parameters in effect, deaths survived."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from engine.backends import open_backend
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.core.errors import InvalidRequest
from engine.core.types import FinishReason, Protocol, Request, SamplingParams
from engine.models.files.folder import bundled_folder
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from tests.engine.models.files.gguf_files import copy_with
from tests.process_engines.engines import LLAMA, generated, only

pytestmark = only(LLAMA)

DRAFTED = tuple(name for name in LLAMA.arms if name != "plain")


@pytest.fixture(scope="module")
def long_plain(arm):
    """Long enough that ngram-mod, which takes answers up in blocks of more than 32 tokens, copies from them."""
    return generated(arm("plain"), SamplingParams(max_new_tokens=64))


def test_a_converted_file_holds_the_weights_bit_for_bit(converted):
    # imported here, because only the environment of the engine has it
    import gguf

    from engine.backends.process.convert import weights_of

    tensors = {each.name: each for each in gguf.GGUFReader(converted["target"].folder / "model.gguf").tensors}
    weights = weights_of(bundled_folder("bundled:target"))
    assert {each.tensor_type.name for each in tensors.values()} == {"F32"}
    assert sum(each.n_elements for each in tensors.values()) == sum(each.size for each in weights.values())
    same = {"token_embd.weight": "model.embed_tokens", "blk.2.ffn_down.weight": "model.layers.2.mlp.down_proj"}
    for name, source in same.items():
        assert np.array_equal(tensors[name].data.reshape(-1), weights[f"{source}.weight"].reshape(-1))
    assert converted["target"].manifest["rounding"].startswith("none")


def test_a_gguf_file_is_loaded_as_it_is(converted, tmp_path, monkeypatch):
    """The server multiplies rounded blocks, and its rows are near those of the unpacked weights."""
    import gguf

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kind = gguf.GGMLQuantizationType.Q8_0
    file = copy_with(converted["target"].folder / "model.gguf", tmp_path / "q8.gguf", kind=kind)
    backend = open_backend("llama_cpp", {"target": ModelSource(str(file))})
    try:
        engine = backend.arm(EngineSpec(Protocol.GREEDY, engine={"threads": 1}, **LLAMA.arms["plain"]))
        assert any("rounded activations" in str(fact) for fact in engine.effective_config().facts.values())
        for answer in generated(engine, SamplingParams(max_new_tokens=16)):
            reference = decode(engine.anchor(answer.request, answer.tokens).trace).logprob
            assert 1e-4 < np.abs(decode(answer.trace).logprob - reference).max() < 0.1
    finally:
        backend.close()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", DRAFTED)
def test_greedy_tokens_are_those_of_plain_decoding(arm, long_plain, name, rows):
    engine, asked = arm(name, rows=rows), long_plain[0].request.sampling
    # twice, because ngram-mod copies from the requests before
    answers = [*generated(engine, asked), *generated(engine, asked)]
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in long_plain] * 2
    counts = [answer.facts["speculation"] for answer in answers]
    assert sum(each["drafted"] for each in counts) > 0
    assert sum(each["accepted"] for each in counts) > 0
    assert [answer.text for answer in answers] == [answer.facts["decoded"] for answer in answers]


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.0, top_k=20)], ids=["0", "1"])
def test_log_probabilities_of_plain_decoding_are_those_of_a_reference_pass(arm, sampling):
    engine = arm("plain", Protocol.GUMBEL)
    for answer in generated(engine, replace(sampling, max_new_tokens=16)):
        raw = replace(answer.request, sampling=SamplingParams(max_new_tokens=16))
        reference = decode(engine.anchor(raw, answer.tokens).trace).logprob
        assert np.abs(decode(answer.trace).logprob - reference).max() < 5e-5


@pytest.mark.parametrize("name", DRAFTED)
def test_log_probabilities_of_drafted_tokens_are_zero(arm, name):
    """A defect of the engine (llama.cpp 27972): steps with drafts give every token a log-probability of 0."""
    engine = arm(name)
    generated(engine, SamplingParams(max_new_tokens=32))
    answers = generated(engine, SamplingParams(max_new_tokens=32))
    numbers = np.concatenate([decode(answer.trace).logprob for answer in answers])
    accepted = sum(answer.facts["speculation"]["accepted"] for answer in answers)
    assert accepted <= (numbers == 0).sum() < len(numbers)


def test_settings_are_read_back_from_the_server(arm):
    assert arm("plain").effective_config().in_effect == {"speculation": "none", "slots": 1}
    assert arm("simple").effective_config().in_effect == {
        "speculation": "ngram-simple",
        "slots": 1,
        "size_m": 4,
        "size_n": 2,
        "min_hits": 1,
    }
    drawn = arm("drawn", rows=3).effective_config()
    assert drawn.in_effect.items() >= {"speculation": "draft-simple", "slots": 3, "probabilistic": True}.items()
    assert drawn.lossless
    engine = drawn.facts["engine"]
    assert (engine["weights"], engine["cache"], engine["context"]) == ("all F32", ["GGML_TYPE_F32"] * 2, 1024)
    assert engine["synthetic"] is False
    assert engine["installed"]["distribution"] == "xllamacpp"


def test_drawn_drafts_do_not_keep_the_tokens_of_plain_sampling(arm):
    asked = SamplingParams(temperature=0.8, max_new_tokens=32)
    drawn, undrafted = (generated(arm(each, Protocol.CHAIN), asked) for each in ("drawn", "plain"))
    assert [answer.tokens for answer in drawn] != [answer.tokens for answer in undrafted]


@pytest.mark.parametrize("name", list(LLAMA.arms))
def test_a_stop_string_ends_the_answer_inside_a_draft(arm, plain, name):
    stop = plain[0].facts["decoded"][20:26]
    answer = generated(arm(name), SamplingParams(max_new_tokens=32, stop=(stop,)))[0]
    assert answer.finish_reason is FinishReason.STOP
    assert answer.text == plain[0].facts["decoded"].partition(stop)[0]
    assert answer.tokens == plain[0].tokens[: len(answer.tokens)]
    # the server leaves out the log-probabilities of the stop string, so the record has none
    assert decode(answer.trace).logprob.size == 0


@pytest.mark.parametrize("name", list(LLAMA.arms))
def test_a_forbidden_token_is_not_drafted_either(arm, plain, name):
    forbidden = plain[0].tokens[3]
    for answer in generated(arm(name), SamplingParams(max_new_tokens=32, bad_words=((forbidden,),))):
        assert forbidden not in answer.tokens


@pytest.mark.parametrize("name", list(LLAMA.arms))
def test_an_end_token_ends_the_answer(arm, name):
    answers = generated(arm(name), SamplingParams(max_new_tokens=32, logit_bias=((0, 7.0),)))
    ends = [each for each in answers if each.finish_reason is FinishReason.EOS]
    assert all(each.tokens[-1] == 0 and 0 not in each.tokens[:-1] for each in ends)
    assert ends


def test_the_penalty_of_presence_counts_the_prompt_and_is_refused(arm):
    """The engine's meaning, shown by its server: the penalty changes the first token, before any is generated."""
    engine = arm("plain")
    request = Request("r0", (375, 496, 276, 327, 73, 13, 373), SamplingParams(max_new_tokens=1))
    with pytest.raises(InvalidRequest, match="counts the prompt's tokens in presence_penalty"):
        engine.require([replace(request, sampling=SamplingParams(presence_penalty=1.0))])
    first = {}
    for penalty in (0.0, 30.0):
        message = engine.message(request)
        message["body"]["presence_penalty"] = penalty
        (frame,) = engine.processes.answers([message])
        (first[penalty],) = frame.header["tokens"]
    assert first[0.0] in request.prompt
    assert first[0.0] != first[30.0]


def test_a_refused_request_fails_alone(arm):
    engine = arm("plain")
    (good, bad) = (
        engine.message(Request(f"r{at}", (5, 6), SamplingParams(max_new_tokens=2), stream_of(str(at))))
        for at in range(2)
    )
    bad["body"]["prompt"] = [10**6]
    answered, refused = engine.processes.answers([good, bad], 2)
    assert len(answered.header["tokens"]) == 2
    assert (refused.kind, "invalid tokens" in refused.message) == ("refused", True)


def test_a_killed_server_is_started_again(arm, plain):
    engine = arm("simple", restarts=1)
    first = generated(engine, SamplingParams(max_new_tokens=32))
    os.kill(engine.processes._running._child.pid, signal.SIGKILL)
    request = first[0].request
    (lost,) = engine.generate([request])
    assert (lost.finish_reason, lost.facts["error"]["kind"]) == (FinishReason.ERROR, "engine_died")
    (again,) = engine.generate([request])
    assert again.tokens == plain[0].tokens
