"""vLLM's own server, audited over HTTP: with a draft it says what it says without."""

import pytest

from audit.evidence.verdicts import Verdict
from tests.http.running import run_suite

from .endpoints import started
from .setting import REFERENCE

pytestmark = pytest.mark.vllm
DRAFT = {"method": "draft_model", "model": str(REFERENCE / "medium_draft"), "num_speculative_tokens": 3}
NUMBERED = ("liveness", "configuration", "reconciliation", "greedy_equality", "logprob_closeness")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Both start at once."""
    folder = tmp_path_factory.mktemp("servers")
    with started(folder / "plain.log") as plain, started(folder / "draft.log", DRAFT) as drafting:
        yield plain.ready(), drafting.ready()


def facts_of(found):
    requests, failed, _ = found.arm("speculating")
    return [each.trace.header.facts for each in requests], [each.trace.header.facts for each in failed]


@pytest.mark.parametrize("source", ["served:bundled", str(REFERENCE / "target")])
@pytest.mark.parametrize("way", ["whole", "both"])
def test_tokens_and_log_probabilities_are_the_plain_servers(servers, tmp_path, source, way):
    changes = {"served:bundled": source, "server: vllm": f"server: vllm, stream: {way}"}
    found = run_suite("greedy", servers[0].url, servers[1].url, tmp_path, **changes)
    verdicts = found.verdicts()
    for name in NUMBERED:
        print(name, verdicts[name].verdict.value, verdicts[name].summary)
        assert verdicts[name].verdict is Verdict.CERTIFIED, verdicts[name].summary
    assert found.code == 0
    facts, failed = facts_of(found)
    assert failed == []
    assert {each["tokens"] for each in facts} == {"server"}
    assert sum(each["speculation"]["drafted"] for each in facts) > 0
    (counted,) = [each["server_counters"] for each in facts if "server_counters" in each]
    # twice as many where every request is asked twice
    times = 2 if way == "both" else 1
    for key in ("drafted", "accepted"):
        assert counted[key] >= sum(each["speculation"][key] for each in facts)
    assert counted["drafted"] == pytest.approx(times * sum(each["speculation"]["drafted"] for each in facts), rel=0.05)


def test_calls_of_tools_whole_and_streamed(servers, tmp_path):
    found = run_suite("tools", servers[0].url, servers[1].url, tmp_path, **{"max_new_tokens: 40": "max_new_tokens: 96"})
    verdicts = found.verdicts()
    for each in verdicts.values():
        print(each.check, each.verdict.value, each.summary)
    assert {each.verdict for each in verdicts.values()} == {Verdict.CERTIFIED}
    facts, _ = facts_of(found)
    calls = [call for each in facts for call in each.get("tool_calls", ())]
    assert calls
    assert all(call["valid"] for call in calls)


def test_a_parameter_that_a_drafting_server_refuses_is_on_record(servers, tmp_path):
    changes = {"max_new_tokens: 128": "max_new_tokens: 8, min_p: 0.2, temperature: 1", "temperature: 0, ": ""}
    changes |= {"verifier: greedy": "verifier: chain"}
    found = run_suite("greedy", servers[0].url, servers[1].url, tmp_path, **changes)
    facts, failed = facts_of(found)
    print([each["error"] for each in failed][:1], found.code)
    assert facts == []
    assert {each["error"]["kind"] for each in failed} == {"refused"}
    assert found.verdicts()["liveness"].verdict is Verdict.FAULT
    assert all("min_p" in each["error"]["message"] for each in failed)
