"""`audit run` over two endpoints: the packaged suites pass, an endpoint that is wrong is told, and a key is nowhere."""

import json

import pytest

from audit.evidence.verdicts import Verdict
from tests.http.running import run_suite
from tests.http.script import Misdeed, Script

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("http")]
KEY = "sk-end-to-end-0123456789"
LONGER = {"max_new_tokens: 40": "max_new_tokens: 64"}
MORE = {"server: vllm": "server: vllm, backoff_s: 0.01, tries: 3"}
ALLOWED = {Verdict.CERTIFIED, Verdict.NOT_RUN, Verdict.INCONCLUSIVE}


@pytest.fixture
def audit(tmp_path):
    """Runs a packaged suite at two servers."""

    def run(name, baseline, candidate, **changes):
        return run_suite(name, baseline.url, candidate.url, tmp_path, **changes)

    return run


def facts_of(request):
    return request.trace.header.facts


@pytest.mark.parametrize("source", ["served:bundled", "bundled:target"])
def test_the_greedy_suite_passes_and_counts_the_drafts(serve, audit, source):
    with serve() as baseline, serve(gamma=3) as candidate:
        found = audit("greedy", baseline, candidate, **{"served:bundled": source}, **MORE)
    verdicts = found.verdicts()
    for name in ("liveness", "configuration", "reconciliation"):
        assert verdicts[name].verdict is Verdict.CERTIFIED, verdicts[name].summary
    equal = verdicts["greedy_equality"]
    assert equal.details["divergences"] == {"numerical": 0, "real": 0, "untriaged": 0, "baseline": 0}
    assert verdicts["logprob_closeness"].effect < 1e-4
    requests, failed, level = found.arm("speculating")
    assert (len(requests), failed, level) == (4, [], 1)
    counted = [facts["server_counters"] for facts in map(facts_of, requests) if "server_counters" in facts]
    assert counted[0]["drafted"] > counted[0]["accepted"] > 0
    assert "arm speculating: drafted and accepted from the server's answers, per request" in found.output
    (row,) = [line.split() for line in found.output.splitlines() if line.split()[:2] == ["speculating", "candidate"]]
    assert [int(row[6]), int(row[7])] == [counted[0]["drafted"], counted[0]["accepted"]]
    assert found.code == 0, found.output


def test_a_baseline_that_speculates_is_found(serve, audit):
    with serve(gamma=2) as server:
        found = audit("greedy", server, server, **MORE)
    assert found.code == 1
    assert found.verdicts()["configuration"].summary == "the baseline's speculation: requested False, effective True"


def test_text_alone_is_compared_and_nothing_else(serve, audit):
    with serve(ids=False, scores=False) as baseline, serve(gamma=3, ids=False, scores=False) as candidate:
        found = audit("greedy", baseline, candidate, **MORE)
    verdicts = found.verdicts()
    assert verdicts["greedy_equality"].verdict is Verdict.CERTIFIED, verdicts["greedy_equality"].summary
    assert verdicts["greedy_equality"].level == 0
    assert verdicts["logprob_closeness"].verdict is Verdict.NOT_RUN
    requests, _, level = found.arm("speculating")
    assert level == 0
    assert requests[0].tokens == tuple(map(ord, requests[0].text))


def test_an_endpoint_that_answers_something_else_is_found(serve, audit):
    # one token too many in one answer, as a wrong accepted token would
    wrong = Misdeed(swap=('"token_ids": [', '"token_ids": [7, '))
    with serve() as baseline, serve(gamma=3, fail=Script([wrong])) as candidate:
        found = audit("greedy", baseline, candidate, **MORE)
    verdicts = found.verdicts()
    assert found.code == 1
    # the noise of three controls is known, and one wrong token is more
    assert verdicts["greedy_equality"].verdict is Verdict.FAULT
    assert verdicts["greedy_equality"].details["divergences"]["real"] == 1
    assert verdicts["reconciliation"].verdict is Verdict.INCONCLUSIVE
    assert "tokens, the usage counts" in verdicts["reconciliation"].summary


def test_tool_calls_read_otherwise_in_a_stream_are_found(serve, audit):
    # every second request is the streamed one; its first character of content is another
    swap = Misdeed(swap=('"content": "', '"content": "#'))
    with serve() as baseline, serve(gamma=3, fail=Script([Misdeed(), swap])) as candidate:
        found = audit("tools", baseline, candidate, **{"batch_size: 8": "batch_size: 1"}, **MORE)
    verdicts = found.verdicts()
    assert verdicts["greedy_equality"].details["divergences"]["real"] == 0
    assert "the streamed text differs" in verdicts["reconciliation"].summary


def test_the_tools_suite_passes_and_a_lost_call_of_a_stream_is_a_fault(serve, audit):
    with serve(calls="sound") as baseline, serve(gamma=3, calls="sound") as candidate:
        sound = audit("tools", baseline, candidate, **LONGER, **MORE)
    assert sound.code == 0, sound.output
    assert sound.verdicts()["tool_call_equality"].details["with_calls"] > 0
    with serve(calls="sound") as baseline, serve(gamma=3, calls="lost") as candidate:
        found = audit("tools", baseline, candidate, **LONGER, **MORE)
    verdicts = found.verdicts()
    assert found.code == 1
    assert verdicts["greedy_equality"].details["divergences"]["real"] == 0
    assert verdicts["tool_call_equality"].verdict is Verdict.FAULT
    assert "streamed, call 1 is no call" in verdicts["tool_call_equality"].findings[0].message


def test_the_structured_suite_passes_and_answers_that_leave_their_grammar_are_a_fault(serve, audit):
    wrong = Script(always=Misdeed(swap=('"content": "', '"content": "\\u0001')))
    with serve() as baseline, serve(gamma=3) as candidate:
        sound = audit("structured", baseline, candidate, **LONGER, **MORE)
    assert sound.code == 0, sound.output
    with serve() as baseline, serve(gamma=3, fail=wrong) as candidate:
        found = audit("structured", baseline, candidate, **LONGER, **MORE)
    assert found.code == 1
    assert found.verdicts()["schema_conformance"].verdict is Verdict.FAULT


def test_the_sampling_suite_reaches_verdicts(serve, audit):
    with serve() as baseline, serve(gamma=3) as candidate:
        found = audit("sampling", baseline, candidate, **{"max_new_tokens: 64": "max_new_tokens: 12"}, **MORE)
    verdicts = found.verdicts()
    assert verdicts["liveness"].verdict is Verdict.CERTIFIED
    assert {each.verdict for each in verdicts.values()} <= ALLOWED
    # the server's draws are functions of the seed alone
    assert verdicts["seed"].verdict is not Verdict.FAULT


def test_a_suite_without_checks_judges_what_an_endpoint_shows(serve, audit):
    """Broken sampling behind a speculating endpoint is no pass, also where the suite names no check."""
    checks = "    checks: [liveness, configuration, identity, surface_parity, two_sample, seed, reconciliation]\n"
    wrong = Script(always=Misdeed(swap=('"content": "', '"content": "zzz ')))
    with serve() as baseline, serve(gamma=3, fail=wrong) as candidate:
        found = audit(
            "sampling", baseline, candidate, **{"max_new_tokens: 64": "max_new_tokens: 12", checks: ""}, **MORE
        )
    verdicts = found.verdicts()
    assert found.code in (1, 3)
    served = {"liveness", "configuration", "reconciliation", "accounting", "greedy_equality", "two_sample"}
    served |= {"identity", "surface_parity"}
    assert set(verdicts) == {*served, "same_seed", "seed", "text", "second_accounts"}
    assert verdicts["text"].verdict is Verdict.FAULT
    assert verdicts["two_sample"].verdict in (Verdict.FAULT, Verdict.INCONCLUSIVE)
    assert {verdicts[name].verdict for name in ("liveness", "configuration")} == {Verdict.CERTIFIED}


def test_lost_requests_are_on_record_and_the_run_is_judged(serve, audit):
    lost = Misdeed(status=500, text='{"error": {"message": "EngineCore died"}}')
    with serve() as baseline, serve(gamma=3, fail=Script([lost] * 3)) as candidate:
        found = audit("greedy", baseline, candidate, **{"batch_size: 8": "batch_size: 1"}, **MORE)
    requests, failed, _ = found.arm("speculating")
    assert (len(requests), len(failed)) == (3, 1)
    verdicts = found.verdicts()
    assert found.code == 1
    assert verdicts["liveness"].verdict is Verdict.FAULT
    assert "EngineCore died" in verdicts["liveness"].findings[0].message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"served:my-model": "served:nothing"}, "no model 'nothing' is served, there is 'bundled'"),
        ({"server: vllm": "server: vllm, api_key: abc"}, "api_key"),
        ({"max_new_tokens: 128": "max_new_tokens: 40, bad_words: [[1]]"}, "has no bad_words"),
        ({"kind: served, gamma: 4": "kind: ngram, gamma: 4"}, 'unknown proposer "ngram"'),
        ({"server: vllm": "server: vllm, body: {seed: 1}"}, "body may not set seed"),
        ({"{kind: served, gamma: 4}": "{kind: served, gamma: 4, options: {n: 1}}"}, "the server chooses how it drafts"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_stored(serve, audit, changes, message):
    with serve() as baseline, serve(gamma=3) as candidate:
        found = audit("greedy", baseline, candidate, **changes)
    assert found.code == 2
    assert message in found.errors
    assert len(found.errors.strip().splitlines()) == 1
    assert "Traceback" not in found.errors
    assert candidate.settings.seen == baseline.settings.seen == []


def test_a_wrong_key_is_told_without_it_and_a_right_one_is_stored_nowhere(serve, audit, monkeypatch, tmp_path):
    monkeypatch.setenv("END_TO_END_KEY", KEY)
    named = {"server: vllm": "server: vllm, backoff_s: 0.01, tries: 2, api_key_env: END_TO_END_KEY"}
    allow = ("--allow-env", "END_TO_END_KEY")
    with serve() as baseline, serve(key="another-one") as candidate:
        found = audit("greedy", baseline, candidate, more=allow, **named)
    assert found.code == 2
    assert "END_TO_END_KEY" in found.errors
    assert KEY not in found.errors + found.output
    echo = Misdeed(status=400, text=json.dumps({"error": {"message": f"not with {KEY}"}}))
    with serve(key=KEY) as baseline, serve(key=KEY, gamma=3, fail=Script([echo])) as candidate:
        found = audit("greedy", baseline, candidate, more=allow, **named)
    assert "not with ***" in found.verdicts()["liveness"].findings[0].message
    assert KEY not in found.errors + found.output
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in written} >= {"audit.db", "results.json"}
    assert not [path.name for path in written if KEY.encode() in path.read_bytes()]
    _, failed, _ = found.arm("speculating")
    assert failed[0].trace.header.facts["error"]["message"].endswith("not with ***")


def test_one_endpoint_is_judged_against_what_it_said_before_it_speculated(serve, audit):
    with serve() as server:
        plain = audit("greedy", server, server, **{"[liveness, configuration,": "[liveness,"}, **MORE)
    assert plain.code in (0, 3), plain.output
    with serve(gamma=3) as server:
        found = audit("greedy", server, server, more=("--baseline", "latest"), **MORE)
        asked = len(server.settings.seen)
    assert found.code == 0, found.output
    verdicts = found.verdicts()
    assert verdicts["greedy_equality"].details["divergences"] == {
        "numerical": 0,
        "real": 0,
        "untriaged": 0,
        "baseline": 0,
    }
    # the baseline's configuration is what it was then
    assert verdicts["configuration"].verdict is Verdict.CERTIFIED
    requests, _, _ = found.arm("baseline/greedy")
    assert len(requests) == asked == 4
