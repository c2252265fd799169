"""A server that misbehaves: everything is answered in the end, or on record with the reason; nothing is lost."""

import time

import pytest

from engine.core.errors import EngineError
from engine.core.types import FinishReason
from engine.record.trace import decode
from tests.http.asking import answers, arm, asked
from tests.http.script import Misdeed, Script
from tests.http.server import serving
from tests.support.tiers import fast_first, slow_unless

WAYS = ("whole", "streamed")
PASSING = {
    "500": Misdeed(status=500),
    "503 in html": Misdeed(status=503, text="<html>busy</html>"),
    "429": Misdeed(status=429, headers={"Retry-After": "0"}),
    "truncated": Misdeed(cut=90),
    "empty": Misdeed(cut=0),
    "reset": Misdeed(reset=90),
    "reset at once": Misdeed(reset=0),
    "a field of a wrong type": Misdeed(swap=('"choices": [', '"choices": 3, "x": [')),
    "no end": Misdeed(swap=('"finish_reason": "length"', '"finish_reason": null')),
}
LASTING = {
    "http": Misdeed(status=500),
    "malformed": Misdeed(cut=90),
    "timeout": Misdeed(pause_s=2.5),
    "refused": Misdeed(status=400, text='{"error": {"message": "min_p is not supported"}}'),
}


@pytest.fixture(scope="module")
def expected(backend, decode):
    """What a server that does not misbehave answers."""
    with serving(backend, decode) as server:
        engine = arm(server)
        return [each.tokens for each in answers(engine, asked(engine))]


@pytest.mark.medium
@pytest.mark.parametrize("way", fast_first(WAYS))
@pytest.mark.parametrize(
    "misdeed",
    slow_unless(PASSING.values(), [PASSING["503 in html"], PASSING["reset"], PASSING["truncated"]]),
    ids=list(PASSING),
)
def test_a_failure_that_passes_is_tried_again_and_the_answer_is_the_same(serve, expected, misdeed, way):
    with serve(fail=Script([misdeed, misdeed])) as server:
        engine = arm(server, stream=way, rows=1)
        found = answers(engine, asked(engine))
        assert [each.tokens for each in found] == expected
        assert [each.facts["attempts"] for each in found] == [3, 1, 1]
        assert len(found[0].facts["lost"]) == 2
        assert len(server.settings.seen) == 5


@pytest.mark.medium
@pytest.mark.parametrize("way", fast_first(WAYS))
@pytest.mark.parametrize(("kind", "misdeed"), LASTING.items())
def test_a_failure_that_lasts_is_on_record_and_the_others_are_answered(serve, expected, kind, misdeed, way):
    with serve(fail=Script([misdeed] * (1 if kind == "refused" else 2))) as server:
        # so few tokens that a busy machine answers in time
        engine = arm(server, stream=way, rows=1, tries=2, timeout_s=2.0)
        found = answers(engine, asked(engine, max_new_tokens=2))
    lost, *others = found
    assert [each.tokens for each in others] == [tokens[:2] for tokens in expected[1:]]
    assert (lost.tokens, lost.finish_reason, lost.text) == ((), FinishReason.ERROR, "")
    error = decode(lost.trace).header.facts["error"]
    assert error == lost.facts["error"]
    assert error["kind"] == kind
    assert error["attempts"] == (1 if kind == "refused" else 2)
    assert decode(lost.trace).steps == 0
    assert kind != "refused" or error["message"] == "status 400: min_p is not supported"


@pytest.mark.medium
@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_drips_is_cut_off_by_the_deadline_and_not_by_silence(serve, way):
    with serve(fail=Script([Misdeed(drip_s=0.1, piece=20)])) as server:
        engine = arm(server, stream=way, rows=1, tries=1, timeout_s=1.0, silence_s=20)
        began = time.monotonic()
        (lost,) = answers(engine, asked(engine, 1))
        assert 0.9 < time.monotonic() - began < 5
    assert lost.facts["error"]["kind"] == "timeout"


@pytest.mark.medium
def test_a_slow_answer_that_keeps_coming_is_waited_for(serve, expected):
    with serve(fail=Script([Misdeed(drip_s=0.05, piece=200)])) as server:
        engine = arm(server, stream="streamed", rows=1, tries=1, silence_s=2)
        assert answers(engine, asked(engine, 1))[0].tokens == expected[0]


@pytest.mark.medium
def test_silence_is_cut_off_before_the_deadline(serve):
    with serve(fail=Script([Misdeed(pause_s=2.0)])) as server:
        engine = arm(server, rows=1, tries=1, silence_s=0.3, timeout_s=20)
        began = time.monotonic()
        (lost,) = answers(engine, asked(engine, 1))
        assert time.monotonic() - began < 2.0
    assert lost.facts["error"]["kind"] == "timeout"


@pytest.mark.medium
def test_a_server_that_asks_to_wait_is_waited_for(serve):
    with serve(fail=Script([Misdeed(status=429, headers={"Retry-After": "1"})])) as server:
        engine = arm(server, rows=2, backoff_s=0.0)
        began = time.monotonic()
        found = answers(engine, asked(engine))
    assert time.monotonic() - began >= 1.0
    assert all(each.finish_reason is not FinishReason.ERROR for each in found)


@pytest.mark.medium
def test_a_server_that_asks_for_too_long_a_wait_is_not_asked_again(serve):
    with serve(fail=Script([Misdeed(status=429, headers={"Retry-After": "3600"})])) as server:
        engine = arm(server, rows=1)
        lost, *others = answers(engine, asked(engine))
        assert len(server.settings.seen) == 3
    assert (lost.facts["error"]["status"], lost.facts["error"]["attempts"]) == (429, 1)
    assert all(each.tokens for each in others)


@pytest.mark.medium
def test_an_error_in_the_middle_of_a_stream_is_one(serve, expected):
    swap = ("data: [DONE]", 'data: {"error": {"message": "out of memory", "code": 500}}')
    with serve(fail=Script([Misdeed(swap=swap)])) as server:
        engine = arm(server, stream="streamed", rows=1)
        (found,) = answers(engine, asked(engine, 1))
    assert found.facts["lost"] == ["http: status 500: out of memory"]
    assert found.tokens == expected[0]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("finish", "kind"), fast_first([("content_filter", "refused"), ("abort", "http"), ("a reason of its own", "http")])
)
def test_an_answer_that_the_server_broke_off_is_none(serve, finish, kind):
    with serve(fail=Script([Misdeed(swap=('"finish_reason": "length"', f'"finish_reason": "{finish}"'))])) as server:
        engine = arm(server, rows=1)
        lost, *others = answers(engine, asked(engine))
    assert lost.facts["error"]["kind"] == kind
    assert finish in lost.facts["error"]["message"]
    assert all(each.tokens for each in others)


@pytest.mark.medium
def test_a_token_outside_the_vocabulary_is_no_answer(serve):
    with serve(fail=Script([Misdeed(swap=('"token_ids": [', '"token_ids": [999999, '))])) as server:
        engine = arm(server, rows=1)
        lost, *_ = answers(engine, asked(engine))
    assert lost.facts["error"]["kind"] == "malformed"
    assert "token 999999 is not in the target's vocabulary of 2048" in lost.facts["error"]["message"]


@pytest.mark.medium
def test_a_server_that_goes_away_loses_what_it_owes_and_nothing_before(serve, expected):
    with serve() as server:
        engine = arm(server, rows=1, tries=2)
        requests = asked(engine)
        generations = engine.generate(requests)
        server.settings.fail.waiting.extend([Misdeed(), Misdeed(reset=0)])
        server.settings.fail.always = Misdeed(reset=0)
        found = [next(generations)]
        server.shutdown()
        server.server_close()
        found += list(generations)
    assert found[0].tokens == expected[0]
    assert {each.facts["error"]["kind"] for each in found[1:]} <= {"engine_died", "http"}
    assert len(found) == 3


def test_a_server_that_dies_of_a_request_is_told_with_its_last_words(serve):
    first = Misdeed(status=500, text='{"error": {"message": "EngineCore encountered an issue"}}')
    with serve(fail=Script([first], always=Misdeed(reset=0))) as server:
        engine = arm(server, rows=1, tries=2)
        (lost,) = answers(engine, asked(engine, 1))
    assert lost.facts["error"]["message"].endswith("; the first try: http: status 500: EngineCore encountered an issue")


def test_no_server_is_one_line_before_anything_runs(serve):
    with serve() as server:
        pass
    with pytest.raises(EngineError, match=r"http://127.0.0.1:\d+/v1: no connection: .*; is the server running\?"):
        arm(server, tries=1)


def test_a_model_that_is_not_served_is_one_line_with_those_that_are(serve):
    with (
        serve(models=("small", "large")) as server,
        pytest.raises(EngineError, match="no model 'bundled' is served, there is 'small', 'large'"),
    ):
        arm(server)


def test_several_models_and_no_name(serve):
    with serve(models=("small", "large")) as server, pytest.raises(EngineError, match=r"set engine\.model to one of"):
        arm(server, model=None)


def test_an_address_that_is_not_the_apis_is_one_line(serve):
    with serve() as server, pytest.raises(EngineError, match=r"the server has no list of models .* end in /v1"):
        arm(server, url=server.url.removesuffix("/v1"))


@pytest.mark.parametrize("gamma", [0, 2])
@pytest.mark.parametrize("proposer", [None, "served"])
def test_whether_a_server_speculates_is_read_from_its_counters(serve, gamma, proposer):
    with serve(gamma=gamma) as server:
        config = arm(server, proposer=proposer).effective_config()
    assert config.requested["speculation"] is (proposer is not None)
    assert config.in_effect["speculation"] is (gamma > 0)
