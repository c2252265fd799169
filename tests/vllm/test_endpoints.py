"""vLLM's own server, audited over HTTP: with a draft it says what it says without."""

import json

import pytest

from audit.evidence.verdicts import Verdict
from tests.audit.invoke import invoke
from tests.http.running import run_suite

from .endpoints import started
from .setting import REFERENCE

pytestmark = pytest.mark.vllm
DRAFT = {"method": "draft_model", "model": str(REFERENCE / "medium_draft"), "num_speculative_tokens": 3}
LONGER = {"max_new_tokens: 40": "max_new_tokens: 96"}
NUMBERED = (
    *("liveness", "configuration", "identity", "surface_parity", "reconciliation", "greedy_equality"),
    "logprob_closeness",
)


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


def contract_of(server):
    done = invoke("probe", server.url, "--contract", "--json")
    return {row["expectation"]: row for row in json.loads(done.stdout)["contract"]}


def test_the_contract_of_the_plain_server_holds(servers):
    rows = contract_of(servers[0])
    assert {row["result"] for row in rows.values()} == {"holds"}, rows


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_calls_of_tools_whole_and_streamed(servers, tmp_path, choice):
    changes = {
        **LONGER,
        "tool_calls.jsonl}": "tool_calls.jsonl, limit: 12}",
        "tool_choice: auto": f"tool_choice: {choice}",
    }
    found = run_suite("tools", servers[0].url, servers[1].url, tmp_path, **changes)
    verdicts = found.verdicts()
    for each in verdicts.values():
        print(each.check, each.verdict.value, each.summary)
    assert {each.verdict for each in verdicts.values()} == {Verdict.CERTIFIED}
    facts, failed = facts_of(found)
    assert failed == []
    assert {each["tools"]["choice"] for each in facts} == {choice}
    calls = [call for each in facts for call in each.get("tool_calls", ())]
    assert bool(calls) is (choice != "none")
    assert all(call["valid"] for call in calls)
    assert all(
        each["tools"]["streamed"]["calls"] == each["tools"]["calls"] for each in facts if "streamed" in each["tools"]
    )


def test_calls_are_lost_beside_sampled_requests(servers, tmp_path):
    """On a CPU, drafted rows of mixed batches have undefined temperatures (upstream issue 55005)."""
    changes = {**LONGER, "tool_calls.jsonl}": "tool_calls.jsonl, limit: 12}", "stream: both": "stream: streamed"}
    changes["    checks:"] = "    beside: {temperature: 1}\n    checks:"
    found = run_suite("tools", servers[0].url, servers[1].url, tmp_path, **changes)
    verdict = found.verdicts()["tool_call_equality"]
    print(verdict.summary, [each.message for each in verdict.findings])
    assert verdict.verdict is Verdict.FAULT
    assert found.code == 1


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_answers_under_grammars_of_every_kind(servers, tmp_path, way):
    changes = {**LONGER, "structured.jsonl}": "structured.jsonl, limit: 12}"}
    changes["server: vllm"] = f"server: vllm, stream: {way}"
    found = run_suite("structured", servers[0].url, servers[1].url, tmp_path, **changes)
    for each in found.every():
        print(each.arm, each.check, each.verdict.value, each.summary)
        assert each.verdict is Verdict.CERTIFIED, each.summary
    assert found.code == 0
    kinds = {each.trace.header.sampling.structured.kind for each in found.arm("speculating")[0]}
    assert kinds == {"json", "regex", "choice", "grammar"}


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


def test_the_contract_of_a_drafting_server_names_what_it_breaks(servers):
    """The last test, because a request with top_k ends this engine on a CPU: it asks for the largest of no rows.

    Temperature and top_p of drafted rows are undefined there (upstream issue 55005), so that a seed may not repeat.
    """
    rows = contract_of(servers[1])
    assert rows["top_k"]["result"] == "undecided"
    assert "EngineCore encountered an issue" in rows["top_k"]["seen"]
    broken = {name for name, row in rows.items() if row["result"] != "holds"}
    # min_p and the drafts of an answer are asked for after it
    assert broken <= {"seed", "top_p", "top_k", "min_p", "drafts per answer"}, rows
