"""Arms on onnxruntime-genai: equal tokens, rows, rounds that agree with the tokens, and parameters that take effect."""

from dataclasses import replace

import numpy as np
import pytest

from engine.backends.engine_spec import EngineSpec
from engine.backends.interface import Prompt
from engine.core.errors import ModelError
from engine.core.types import FinishReason, Protocol, RecordLevel, Request, SamplingParams
from engine.record.trace import decode
from engine.sampling.rng import stream_of
from engine.sampling.transforms import transform

pytestmark = pytest.mark.ort

TEXTS = ("def add(a, b):\n    return a + b\n\ndef add3(a, b, c):\n", '{"name": "Ada", "name": "', "one two one two one")
ARMS = {
    "plain": {},
    "draft": {"proposer": "draft_model", "gamma": 4, "draft": "draft"},
    "adaptive": {"proposer": "draft_model", "gamma": 4, "draft": "draft", "options": {"min_adaptive_k": 2}},
    "ngram": {"proposer": "ngram", "gamma": 4, "options": {"ngram_size": 3}},
    "chained": {"proposer": "ngram", "gamma": 4, "options": {"ngram_size": 2, "ngram_chained_lookup": True}},
}


@pytest.fixture(scope="module")
def arm(backend, onnx):
    def opened(name, protocol=Protocol.GREEDY, **named):
        return backend.arm(EngineSpec(protocol, rows=1, engine=onnx, **ARMS[name], **named))

    return opened


def requests(engine, sampling):
    return [
        Request(f"r{at}", engine.encode(Prompt(text=text)), sampling, stream_of(str(at)))
        for at, text in enumerate(TEXTS)
    ]


def generated(engine, sampling):
    found = list(engine.generate(requests(engine, sampling)))
    assert [each.facts["reconciliation"]["mismatches"] for each in found] == [[]] * len(TEXTS)
    return found


@pytest.fixture(scope="module")
def plain(arm):
    return generated(arm("plain"), SamplingParams(max_new_tokens=32))


@pytest.mark.parametrize("name", ["draft", "adaptive", "ngram", "chained"])
@pytest.mark.parametrize("level", [RecordLevel.TOKENS, RecordLevel.FULL])
def test_greedy_tokens_are_those_of_plain_decoding(arm, plain, name, level):
    found = generated(arm(name, level=level), SamplingParams(max_new_tokens=32))
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    counts = [each.facts["speculation"] for each in found]
    assert sum(each["accepted"] for each in counts) > 0
    assert all(sum(each["per_step_emitted"]) + each["undrafted_steps"] == 32 for each in counts)


@pytest.mark.parametrize("name", ["plain", "draft"])
def test_rows_are_those_that_decided(arm, name):
    engine = arm(name)
    assert engine.capabilities().level == 2
    for each in generated(engine, SamplingParams(max_new_tokens=16)):
        rows = decode(each.trace).logits
        assert tuple(rows.argmax(axis=1)) == each.tokens
        anchor = engine.anchor(each.request, each.tokens)
        assert np.abs(decode(anchor.trace).logits - rows).max() < 1e-3


def test_settings_are_read_back_from_the_engine(arm):
    effective = arm("chained").effective_config()
    assert effective.in_effect["ngram_chained_lookup"] is True
    assert effective.in_effect["ngram_size"] == 2
    assert effective.in_effect["speculation"] is True
    assert arm("plain").effective_config().in_effect == {"speculation": False}
    assert arm("draft").effective_config().facts["engine"]["installed"]["version"].startswith("0.")


@pytest.mark.parametrize("name", ["plain", "draft"])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(temperature=1.0, top_k=20, top_p=0.9, repetition_penalty=1.3),
        SamplingParams(temperature=1.0, repetition_penalty=2.0, min_tokens=12),
        SamplingParams(temperature=1.0, top_k=1),
    ],
    ids=lambda each: f"{each.temperature:g}-{each.top_k}-{each.top_p:g}-{each.repetition_penalty:g}",
)
def test_no_token_escapes_the_parameters(arm, name, sampling):
    """By the engine's own rows, as the parameters transform them here."""
    engine = arm(name, Protocol.CHAIN)
    for each in generated(engine, replace(sampling, max_new_tokens=24)):
        history, rows = list(each.request.prompt), decode(each.trace).logits
        for row, token in zip(rows, each.tokens, strict=True):
            p = transform(row, history, len(each.request.prompt), sampling, engine.target.eos_ids).p
            assert p[token] > 0, (token, len(history))
            history.append(token)


def test_a_seed_gives_the_same_tokens_again_and_another_seed_others(arm):
    for name in ("plain", "draft", "ngram"):
        engine, asked = arm(name, Protocol.CHAIN), SamplingParams(temperature=1.0, max_new_tokens=24)
        first, again = generated(engine, asked), generated(engine, asked)
        assert [each.tokens for each in first] == [each.tokens for each in again]
        assert [each.tokens for each in generated(engine, replace(asked, seed=1))] != [each.tokens for each in first]


def test_n_gram_drafts_draw_the_tokens_of_plain_sampling(arm):
    """The engine draws from p and compares, with the numbers of the request's own generator."""
    asked = SamplingParams(temperature=0.8, max_new_tokens=32)
    drafted, undrafted = (generated(arm(name, Protocol.CHAIN), asked) for name in ("ngram", "plain"))
    assert [each.tokens for each in drafted] == [each.tokens for each in undrafted]
    assert sum(each.facts["speculation"]["accepted"] for each in drafted) > 0


def test_a_stop_token_ends_the_answer(arm, plain):
    stop = plain[0].tokens[5]
    at = plain[0].tokens.index(stop)
    for name in ("plain", "draft", "ngram"):
        found = generated(arm(name), SamplingParams(max_new_tokens=32, stop_token_ids=(stop,)))
        assert found[0].tokens == plain[0].tokens[: at + 1]
        assert found[0].finish_reason is FinishReason.STOP


def test_a_folder_of_another_model_is_refused(backend, converted):
    engine = {"onnx": {"target": str(converted["draft"].folder)}}
    with pytest.raises(ModelError, match="converted from another model than bundled:target"):
        backend.arm(EngineSpec(Protocol.GREEDY, engine=engine))
