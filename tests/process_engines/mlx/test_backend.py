"""Arms on mlx_lm: equal tokens, rows of the reference, rounds, parameters in effect, defects, and deaths."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from engine.backends.engine_spec import EngineSpec
from engine.core.errors import InvalidRequest
from engine.core.types import FinishReason, Protocol, SamplingParams
from engine.record.trace import decode
from tests.process_engines.engines import MLX, generated, only, requests_of, tokens_of

from .planted import LEAK, planted

pytestmark = only(MLX)

GREEDY = SamplingParams(max_new_tokens=24)


def test_greedy_tokens_and_rows_are_those_of_plain_decoding_and_of_the_reference(arm):
    plain, drafted = generated(arm("plain"), GREEDY), generated(arm("draft"), GREEDY)
    assert tokens_of(drafted) == tokens_of(plain)
    assert [answer.text for answer in drafted] == [answer.text for answer in plain]
    facts = [answer.facts["speculation"] for answer in drafted]
    assert all(0 < each["accepted"] < each["drafted"] for each in facts)
    for answer in (*plain, *drafted):
        reference = decode(arm("plain").anchor(answer.request, answer.tokens).trace)
        trace = decode(answer.trace)
        assert np.abs(trace.logprob - reference.logprob).max() < 1e-3
        ours, theirs = (rows - rows.max(axis=1, keepdims=True) for rows in (trace.logits, reference.logits))
        assert np.abs(ours - theirs).max() < 1e-3


def test_settings_are_read_back_from_the_engine(arm):
    config = arm("draft", prefill_step_size=16).effective_config()
    assert config.in_effect == {"speculation": "draft_model", "num_draft_tokens": 4, "prefill_step_size": 16}
    assert arm("plain").effective_config().in_effect == {"speculation": "none"}
    engine = config.facts["engine"]
    assert (engine["installed"]["distribution"], engine["device"]) == ("mlx-lm", "Device(cpu, 0)")
    assert engine["weights"] == {"target": ["mlx.core.float32"], "draft": ["mlx.core.float32"]}


@pytest.mark.parametrize(
    ("given", "equal"),
    [
        ({"presence_penalty": 1.0, "frequency_penalty": 0.5}, True),
        ({"logit_bias": ((69, -5.0),)}, True),
        ({"repetition_penalty": 1.3}, False),
    ],
    ids=["presence and frequency", "bias", "repetition"],
)
def test_of_the_penalties_only_repetition_differs_with_drafts(arm, given, equal):
    """A defect of the engine: its history begins at the prompt's last token when it speculates."""
    asked = replace(GREEDY, **given)
    plain = generated(arm("plain"), asked)
    assert tokens_of(plain) != tokens_of(generated(arm("plain"), GREEDY))
    assert (tokens_of(generated(arm("draft"), asked)) == tokens_of(plain)) is equal


def test_a_draft_returned_in_place_of_a_draw_is_a_fault_at_a_temperature_too(arm, mlx_python, tmp_path):
    asked = replace(GREEDY, temperature=0.8, max_new_tokens=96, ignore_eos=True)
    python = planted(tmp_path / "leak", mlx_python, LEAK)
    engine = arm("draft", Protocol.CHAIN, python=python)
    accounts = [answer.facts["reconciliation"] for answer in engine.generate(requests_of(engine, asked))]
    wrong = [message for account in accounts for message in account["faults"]]
    assert any("where it drew" in message for message in wrong)
    assert all(message in account["mismatches"] for account in accounts for message in account["faults"])


@pytest.mark.parametrize("name", MLX.arms)
def test_an_ignored_end_token_ends_nothing(arm, name):
    assert all(len(each.tokens) == 24 for each in generated(arm(name), replace(GREEDY, ignore_eos=True)))


def test_what_the_engine_lacks_is_refused_before_anything_runs(arm):
    engine = arm("draft", Protocol.CHAIN)
    with pytest.raises(InvalidRequest, match="request r0: mlx_lm applies top_p before temperature"):
        engine.require(requests_of(engine, SamplingParams(temperature=0.7, top_p=0.9)))
    with pytest.raises(InvalidRequest, match="request r0: mlx_lm has no min_tokens"):
        engine.require(requests_of(engine, SamplingParams(min_tokens=3)))


def test_an_engine_that_dies_is_started_again(backend, mlx_python):
    """The request that it works on fails, and the next one is answered by a new process."""
    engine = backend.arm(EngineSpec(Protocol.GREEDY, rows=1, engine={"python": mlx_python, "restarts": 1}))
    answers = []
    for answer in engine.generate(requests_of(engine, GREEDY)):
        answers.append(answer)
        if len(answers) == 1:
            os.killpg(engine.processes._running._child.pid, signal.SIGKILL)
    assert [answer.finish_reason is FinishReason.ERROR for answer in answers] == [False, True, False]
    assert answers[1].facts["error"]["kind"] == "engine_died"
