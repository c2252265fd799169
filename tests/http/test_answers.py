"""What becomes of answers: tokens, levels, numbers, texts, seeds, limits, and the key that no one sees."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from engine.backends.engine_spec import EngineSpec, ModelSource
from engine.backends.interface import Anchoring, Prompt
from engine.backends.native.backend import open_models
from engine.core.errors import CapacityError, EngineError, InvalidRequest
from engine.core.types import FinishReason, Protocol, RecordLevel, Request, SamplingParams
from engine.record.trace import decode as decoded
from tests.http.asking import CHATS, answers, arm, asked
from tests.http.script import Misdeed, Script
from tests.support.tiers import fast_first, slow_unless

KEY = "sk-test-0123456789abcdef"


@pytest.fixture(scope="module")
def ours():
    """The same target in our own engine, plain and greedy."""
    backend = open_models({"target": ModelSource("bundled:target")})
    return backend.arm(EngineSpec(Protocol.GREEDY, rows=1, level=RecordLevel.FULL))


@pytest.mark.medium
@pytest.mark.parametrize("gamma", fast_first([3, 0]))
@pytest.mark.parametrize("way", slow_unless(["whole", "streamed", "both"], ["streamed"]))
def test_tokens_log_probabilities_and_leads_are_those_of_our_own_engine(serve, ours, way, gamma):
    expected = answers(ours, asked(ours))
    with serve(gamma=gamma) as server:
        engine = arm(server, proposer="served" if gamma else None, stream=way)
        found = answers(engine, asked(engine))
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.tokens, mine.text, mine.finish_reason) == (theirs.tokens, theirs.text, theirs.finish_reason)
        trace, other = decoded(mine.trace), decoded(theirs.trace)
        assert trace.header.prompt == other.header.prompt
        assert trace.header.eos_ids == other.header.eos_ids
        np.testing.assert_allclose(trace.logprob, other.logprob, atol=1e-4)
        np.testing.assert_allclose(trace.margin, other.margin, atol=1e-3)
        assert "level" not in mine.facts
        assert mine.facts["reconciliation"]["mismatches"] == []
        assert ("speculation" in mine.facts) == bool(gamma)


@pytest.mark.medium
def test_the_last_answer_has_the_servers_counters(serve):
    with serve(gamma=3) as server:
        engine = arm(server, proposer="served")
        answers(engine, asked(engine))
        found = list(engine.generate(asked(engine)))
    counted = [each.facts["server_counters"] for each in found if "server_counters" in each.facts]
    assert found[-1].facts["server_counters"] == counted[0]
    assert len(counted) == 1
    per_request = [each.facts["speculation"] for each in found]
    # the first three are not counted again
    for key in ("drafted", "accepted"):
        assert counted[0][key] == sum(each[key] for each in per_request) > 0


@pytest.mark.medium
def test_a_server_without_counters(serve):
    with serve(metrics=False) as server:
        engine = arm(server, proposer="served")
        config = engine.effective_config()
        assert "speculation" not in config.in_effect
        assert not any("server_counters" in each.facts for each in engine.generate(asked(engine)))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("source", "settings", "origin", "level"),
    fast_first(
        [
            ("bundled:target", {}, "server", 1),
            ("bundled:target", {"ids": False}, "tokenizer", 1),
            ("bundled:target", {"scores": False}, "server", 0),
            ("served:bundled", {}, "server", 1),
            ("served:bundled", {"ids": False}, "characters", 0),
            ("served:bundled", {"ids": False, "scores": False}, "characters", 0),
        ],
        3,
    ),
)
def test_a_record_says_where_its_tokens_come_from_and_how_much_it_shows(serve, source, settings, origin, level):
    with serve(**settings) as server:
        engine = arm(server, source)
        assert engine.evidence_level() == 1
        found = answers(engine, asked(engine))
    for each in found:
        header = decoded(each.trace).header
        assert header.facts["tokens"] == origin
        assert header.facts.get("level", 1) == level
        assert bool(header.facts.get("why")) == (level == 0)
        assert len(decoded(each.trace).logprob) == (len(each.tokens) if level else 0)
        assert max(each.tokens) < header.vocabulary
    if origin == "characters":
        assert found[0].tokens == tuple(map(ord, found[0].text))


def test_without_log_probabilities_the_arm_is_text(serve):
    with serve() as server:
        engine = arm(server, logprobs=0)
        assert engine.evidence_level() == 0
        (found,) = answers(engine, asked(engine, 1))
    assert "level" not in found.facts


@pytest.mark.medium
def test_raw_text_goes_to_the_other_route(serve, ours):
    prompt = Prompt(text="def main(")
    with serve() as server:
        engine = arm(server, api="completions")
        request = Request("a", engine.encode(prompt), SamplingParams(max_new_tokens=12))
        (found,) = answers(engine, [request])
        assert server.settings.seen[0]["prompt"] == list(ours.encode(prompt))
        (expected,) = answers(ours, [Request("a", ours.encode(prompt), request.sampling)])
        assert found.tokens == expected.tokens
        served = arm(server, "served:bundled", api="completions")
        (text,) = answers(served, [Request("a", served.encode(prompt), request.sampling)])
        assert server.settings.seen[1]["prompt"] == "def main("
        assert text.tokens == expected.tokens


@pytest.mark.medium
def test_ends_are_told_apart(serve):
    with serve() as server:
        engine = arm(server)
        free = answers(engine, asked(engine, 1, max_new_tokens=64))[0]
        assert free.finish_reason is FinishReason.EOS
        cut = answers(engine, asked(engine, 1, max_new_tokens=64, stop=("city",)))[0]
        assert cut.finish_reason is FinishReason.STOP
        assert "city" not in cut.text
        token = free.tokens[5]
        at = answers(engine, asked(engine, 1, max_new_tokens=64, stop_token_ids=(token,)))[0]
        assert at.finish_reason is FinishReason.STOP
        assert at.tokens == free.tokens[: free.tokens.index(token) + 1]


@pytest.mark.medium
def test_another_prompt_than_ours_is_a_mismatch(serve):
    with serve(fail=Script([Misdeed(swap=('"prompt_token_ids": [', '"prompt_token_ids": [3, '))])) as server:
        engine = arm(server, rows=1)
        first, second, _ = answers(engine, asked(engine))
    assert "the first difference is at 0" in first.facts["reconciliation"]["mismatches"][0]
    assert second.facts["reconciliation"]["mismatches"] == []


@pytest.mark.medium
def test_a_streamed_answer_that_differs_is_a_mismatch(serve):
    swap = ('"content": "{', '"content": "[')
    with serve(fail=Script([Misdeed(), Misdeed(swap=swap)])) as server:
        engine = arm(server, rows=1, stream="both")
        first, second, _ = answers(engine, asked(engine))
        assert len(server.settings.seen) == 6
    assert "the streamed text differs: at character 0" in first.facts["reconciliation"]["mismatches"][0]
    assert second.facts["reconciliation"]["mismatches"] == []


def seeds(server, **engine):
    engine = arm(server, rows=1, **engine)
    answers(engine, asked(engine, temperature=1.0, seed=4))
    sent = [each["seed"] for each in server.settings.seen]
    server.settings.seen.clear()
    return sent


@pytest.mark.medium
def test_seeds_are_fixed_apart_in_an_arm_and_apart_from_the_baselines(serve):
    with serve() as server:
        plain = seeds(server, rule=Protocol.GUMBEL)
        assert len(set(plain)) == 3
        assert seeds(server, rule=Protocol.GUMBEL) == plain
        assert not set(seeds(server, rule=Protocol.CHAIN, proposer="served")) & set(plain)
        # an arm that claims shared randomness is sent the same seeds
        assert seeds(server, rule=Protocol.GUMBEL, proposer="served") == plain


def test_a_plain_arm_does_not_claim_our_own_noise(serve):
    with serve() as server:
        assert arm(server, rule=Protocol.GUMBEL).effective_config().protocol == "chain"
        assert arm(server, rule=Protocol.GUMBEL, proposer="served").effective_config().protocol == "gumbel"


@pytest.mark.medium
@pytest.mark.parametrize("rows", [1, 3])
def test_so_many_requests_are_open_at_once(serve, rows):
    with serve(fail=Script(always=Misdeed(pause_s=0.2))) as server:
        engine = arm(server, rows=rows)
        answers(engine, asked(engine, 6, max_new_tokens=1))
        assert server.settings.most_open == rows


@pytest.mark.medium
def test_a_limit_per_minute_is_kept(serve):
    with serve() as server:
        engine = arm(server, rows=3, requests_per_minute=150)
        began = time.monotonic()
        answers(engine, asked(engine, 4, max_new_tokens=1))
        assert time.monotonic() - began >= 3 * 0.4


@pytest.mark.medium
def test_a_run_that_stops_sends_nothing_more(serve):
    with serve(fail=Script(always=Misdeed(pause_s=0.2))) as server:
        engine = arm(server, rows=1)
        generations = engine.generate(asked(engine, 20, max_new_tokens=1))
        next(generations)
        began = time.monotonic()
        generations.close()
        assert time.monotonic() - began < 1
        time.sleep(0.6)
        assert len(server.settings.seen) <= 4


@pytest.mark.medium
@pytest.mark.parametrize(
    ("engine", "prompt", "sampling", "message"),
    [
        ({}, Prompt(text="Hi"), {}, "raw text on the chat route; set engine.api to completions"),
        ({"source": "served:bundled", "api": "completions"}, CHATS[0], {}, "needs the target's own template"),
        ({"stream": "both"}, CHATS[0], {"temperature": 1.0}, "stream both compares two answers"),
        ({"server": "openai"}, CHATS[0], {"top_k": 3}, "a server of kind openai has no top_k"),
        ({}, CHATS[0], {"bad_words": ((3,),)}, "a server of kind vllm has no bad_words"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_the_name_of_the_request(serve, engine, prompt, sampling, message):
    with serve() as server:
        engine = arm(server, **engine)
        request = Request("greedy/a#0", engine.encode(prompt), SamplingParams(**sampling))
        with pytest.raises(InvalidRequest, match=f"request greedy/a#0: .*{message}"):
            engine.require([request])
        with pytest.raises(InvalidRequest, match=message):
            next(engine.generate([request]))
        assert server.settings.seen == []


def test_a_request_that_does_not_fit_is_refused(serve):
    with serve() as server:
        engine = arm(server)
        with pytest.raises(CapacityError, match="exceed the server's context of 1024"):
            engine.require(asked(engine, 1, max_new_tokens=1020))


def test_prompts_that_differ_with_the_same_tokens_are_refused(serve):
    with serve() as server:
        engine = arm(server)
        messages = CHATS[0].messages
        engine.encode(Prompt(messages))
        with pytest.raises(InvalidRequest, match="two prompts differ and have the same tokens"):
            engine.encode(Prompt(({**messages[0], "name": "someone"},)))


@pytest.mark.medium
def test_only_a_target_with_files_here_has_an_anchor(serve, ours):
    with serve() as server:
        assert not isinstance(arm(server, "served:bundled"), Anchoring)
        engine = arm(server)
        assert isinstance(engine, Anchoring)
        assert engine.anchor_config().lossless is True
        (request,) = asked(engine, 1)
        (found,) = answers(engine, [request])
    plan = EngineSpec(Protocol.GREEDY, rows=1, level=RecordLevel.TOPK)
    with serve() as server:
        from engine.backends import open_backend

        anchor = open_backend("openai", {"target": ModelSource("bundled:target")}).arm(
            EngineSpec(plan.protocol, rows=1, level=plan.level, engine={"url": server.url, "server": "vllm"})
        )
        anchor.encode(CHATS[0])
        given = decoded(anchor.anchor(request, found.tokens).trace)
    np.testing.assert_allclose(given.logprob, decoded(found.trace).logprob, atol=1e-4)


def test_the_page_lists_the_effective_configuration(serve):
    with serve() as server:
        keys = set(arm(server).effective_config().keys)
    page = (Path(__file__).parents[2] / "docs" / "backends" / "openai.md").read_text(encoding="utf-8")
    table = page.split("## Effective configuration\n", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^(\|[^|]+\|)", table, re.MULTILINE)))) == keys


# the key


@pytest.mark.medium
def test_the_key_is_sent_and_never_told(serve, monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    with serve(
        key=KEY, fail=Script([Misdeed(status=400, text=f'{{"error": "bad request with key {KEY}"}}')])
    ) as server:
        engine = arm(server, api_key_env="TEST_KEY", rows=1)
        assert KEY not in str(engine.effective_config().to_json())
        lost, *others = answers(engine, asked(engine))
    assert all(each.tokens for each in others)
    assert lost.facts["error"]["message"] == "status 400: bad request with key ***"
    assert KEY.encode() not in lost.trace


def test_a_wrong_key_is_one_line_without_it(serve, monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    with serve(key="another-key") as server:
        with pytest.raises(EngineError, match=r"the server refuses us .*look at the key in TEST_KEY") as caught:
            arm(server, api_key_env="TEST_KEY")
        assert KEY not in str(caught.value)
        assert "provided: ***" in str(caught.value)
        with pytest.raises(EngineError, match=r"name the variable with the key in engine\.api_key_env"):
            arm(server)


@pytest.mark.parametrize(("value", "message"), [("", "has no variable TEST_KEY"), ("a b\n", "holds no API key")])
def test_a_variable_without_a_key_is_one_line(serve, monkeypatch, value, message):
    monkeypatch.setenv("TEST_KEY", value)
    with serve() as server, pytest.raises(InvalidRequest, match=message):
        arm(server, api_key_env="TEST_KEY")


def test_models_besides_the_target_and_choices_of_the_servers_are_refused(serve):
    from engine.backends import open_backend

    with pytest.raises(InvalidRequest, match="a server has its own draft"):
        open_backend("openai", {name: ModelSource("served:a") for name in ("target", "draft")})
    backend = open_backend("openai", {"target": ModelSource("served:a")})
    with pytest.raises(InvalidRequest, match="the server chooses how it drafts"):
        backend.arm(EngineSpec(Protocol.CHAIN, "served", 3, options={"n": 2}))
    (facts,) = backend.models()
    assert (facts.source, facts.tokenizer_sha256) == ("served:a", None)
