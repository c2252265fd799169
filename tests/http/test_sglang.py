"""SGLang's own route: requests in its words, answers as those of any other route, and faults that are found in it."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from audit.evidence.verdicts import Verdict
from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Prompt
from engine.backends.native.backend import open_models
from engine.core.types import FinishReason, Protocol, RecordLevel, Request, SamplingParams
from engine.record.trace import decode as decoded
from tests.http.asking import CHATS, answers, arm, asked
from tests.http.running import run_suite
from tests.http.script import FINE, Misdeed, Script
from tests.http.sglang import CONFIG, NativeHandler, NativeReply
from tests.support.tiers import slow_unless

NATIVE = {"server": "sglang", "api": "generate"}


class Incremental(NativeHandler):
    class reply_kind(NativeReply):
        incremental = True


class Older(NativeHandler):
    page = "/get_server_info"


@pytest.fixture
def sglang(serve):
    def make(gamma=0, handler=NativeHandler, **settings):
        return serve(gamma, handler=handler, **settings)

    return make


@pytest.fixture(scope="module")
def ours():
    """The same target in our own engine, plain and greedy."""
    backend = open_models({"target": ModelSource("bundled:target")})
    return backend.arm(EngineSpec(Protocol.GREEDY, rows=1, level=RecordLevel.FULL))


@pytest.mark.medium
@pytest.mark.parametrize("handler", [NativeHandler, Incremental])
@pytest.mark.parametrize("way", slow_unless(["whole", "streamed", "both"], ["both"]))
def test_ids_numbers_and_texts_are_those_of_our_own_engine(sglang, ours, way, handler):
    expected = answers(ours, asked(ours))
    with sglang(3, handler) as server:
        engine = arm(server, proposer="served", stream=way, **NATIVE)
        found = answers(engine, asked(engine))
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.tokens, mine.text, mine.finish_reason) == (theirs.tokens, theirs.text, theirs.finish_reason)
        trace, other = decoded(mine.trace), decoded(theirs.trace)
        np.testing.assert_allclose(trace.logprob, other.logprob, atol=1e-4)
        np.testing.assert_allclose(trace.margin, other.margin, atol=1e-3)
        assert mine.facts["tokens"] == "server"
        assert mine.facts["reconciliation"]["mismatches"] == []
        assert mine.facts["answer"]["system_fingerprint"] == "weights default"
        counted = mine.facts["speculation"]
        assert (
            counted["drafted"]
            >= counted["accepted"]
            == sum(kept * steps for kept, steps in enumerate(counted["steps_by_accepted"]))
        )
        assert mine.facts["surface"].get("streamed_lacks", []) == []


def test_a_request_is_in_the_servers_words(sglang):
    with sglang() as server:
        engine = arm(server, logprobs=5, **NATIVE)
        requests = asked(engine, 1, min_tokens=2, stop=("zzz",), top_k=3, temperature=0.5, max_new_tokens=4)
        answers(engine, requests)
        (body,) = server.settings.seen
    assert body["input_ids"] == list(requests[0].prompt)
    assert (body["return_logprob"], body["top_logprobs_num"], body["logprob_start_len"]) == (True, 5, -1)
    sampling = body["sampling_params"]
    assert (sampling["max_new_tokens"], sampling["min_new_tokens"], sampling["top_k"]) == (4, 2, 3)
    assert 0 <= sampling["sampling_seed"] < 2**63
    assert "model" not in body


@pytest.mark.parametrize("server", ["sglang", "vllm"])
def test_a_parameter_that_is_off_is_off_in_the_servers_words(serve, server):
    """SGLang refuses `top_k: 0` on every route."""
    with serve() as plain:
        engine = arm(plain, server=server)
        list(engine.generate(asked(engine, 1, max_new_tokens=1)))
        assert plain.settings.seen[0]["top_k"] == {"sglang": -1, "vllm": 0}[server]


def test_log_probabilities_after_the_temperature_are_of_another_law(sglang):
    with sglang() as server:
        engine = arm(server, **NATIVE)
        warm, one = (answers(engine, asked(engine, 1, temperature=t, max_new_tokens=4))[0] for t in (0.5, 1.0))
    assert warm.facts["level"] == 0
    assert "divides by the temperature" in warm.facts["why"]
    assert "level" not in one.facts


@pytest.mark.medium
@pytest.mark.parametrize("source", ["bundled:target", "served:bundled"])
def test_the_end_token_is_an_end_and_an_asked_one_a_stop(sglang, ours, source):
    ids = ours.encode(CHATS[0])
    params = SamplingParams(max_new_tokens=100)
    (plain,) = ours.generate([Request("r", ids, params, 0)])
    assert plain.finish_reason is FinishReason.EOS
    with sglang(read=lambda _: ids) as server:
        engine = arm(server, source, **NATIVE)
        prompt = engine.encode(Prompt(text="any"))
        stops = ((), (plain.tokens[3],))
        requests = [Request(str(at), prompt, replace(params, stop_token_ids=ids), at) for at, ids in enumerate(stops)]
        ended, stopped = answers(engine, requests)
    assert (ended.finish_reason, ended.text) == (FinishReason.EOS, plain.text)
    assert stopped.finish_reason is FinishReason.STOP
    assert (ended.tokens, stopped.tokens) == (plain.tokens, plain.tokens[:4])


@pytest.mark.parametrize("handler", [NativeHandler, Older])
def test_the_servers_page_is_its_effective_configuration(sglang, handler):
    with sglang(3, handler) as server:
        config = arm(
            server, proposer="served", expects={"speculative_num_draft_tokens": 5}, **NATIVE
        ).effective_config()
        plain = arm(server, **NATIVE).effective_config()
    assert config.in_effect["speculation"] is True
    assert config.in_effect["speculative_algorithm"] == "EAGLE"
    assert config.requested["speculative_num_draft_tokens"] == 5
    assert config.in_effect["speculative_num_draft_tokens"] == 4
    assert "speculative_num_draft_tokens" not in plain.requested
    assert config.facts["version"] == "0.5.test serving bundled"
    assert "secret" not in str(config.facts)


MORE = {"server: vllm": "server: sglang, api: generate, backoff_s: 0.01, tries: 2", "served:my-model": "bundled:target"}


def later(misdeed):
    return Script([FINE] * 2, misdeed)


@pytest.fixture
def audit(sglang, tmp_path):
    """Runs the packaged greedy suite at a plain server and a speculating one."""

    def run(name="greedy", handler=NativeHandler, more=(), **speculating):
        with sglang() as baseline, sglang(3, handler, **speculating) as candidate:
            return run_suite(name, baseline.url, candidate.url, tmp_path, **(MORE | dict(more)))

    return run


@pytest.mark.slow
@pytest.mark.xdist_group("http")
@pytest.mark.parametrize("way", ["whole", "both"])
def test_a_sound_server_passes(audit, way):
    found = audit(more={"server: vllm": f"{MORE['server: vllm']}, stream: {way}"}.items())
    assert found.code == 0, found.output
    verdicts = found.verdicts()
    for name in ("liveness", "configuration", "identity", "surface_parity", "reconciliation", "greedy_equality"):
        assert verdicts[name].verdict is Verdict.CERTIFIED, verdicts[name].summary
    assert "drafted and accepted from the server's answers, per request" in found.output


class Plain(NativeHandler):
    config: ClassVar = {**CONFIG, "speculative_algorithm": None}


class OtherModel(NativeHandler):
    looks = 0

    @property
    def config(self):
        OtherModel.looks += 1
        return {**CONFIG, "served_model_name": "bundled" if OtherModel.looks < 2 else "other"}


FAULTS = {
    "an id too many": (
        "reconciliation",
        {"fail": later(Misdeed(swap=('"output_ids": [', '"output_ids": [7, ')))},
        "tokens",
    ),
    "no ids": ("surface_parity", {"fail": later(Misdeed(swap=('"output_ids"', '"ids"')))}, "token_ids"),
    "accepted counts": (
        "reconciliation",
        {"fail": Script(always=Misdeed(swap=('"spec_num_correct_drafts": ', '"spec_num_correct_drafts": 9')))},
        "were accepted",
    ),
    "shifted log-probabilities": ("logprob_closeness", {"told": lambda values: [value - 0.5 for value in values]}, ""),
    "weights": (
        "identity",
        {"fail": later(Misdeed(swap=('"weight_version": "default"', '"weight_version": "v2"')))},
        "system_fingerprint changed from 'weights default' to 'weights v2'",
    ),
    "model": ("identity", {"handler": OtherModel}, "version changed from"),
    "no drafts": ("configuration", {"handler": Plain}, "speculation: requested True, effective False"),
}


@pytest.mark.slow
@pytest.mark.xdist_group("http")
@pytest.mark.parametrize("what", FAULTS)
def test_a_planted_fault_is_found(audit, what):
    name, changes, words = FAULTS[what]
    found = audit(**changes)
    told = found.verdicts()[name]
    assert told.verdict in (Verdict.FAULT, Verdict.INCONCLUSIVE), told.summary
    assert words in told.summary
    assert found.code in (1, 3)
    if name != "reconciliation":
        assert found.code == 1
