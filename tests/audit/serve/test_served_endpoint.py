"""Our own readers of endpoints read this server as they read vLLM, and a served run is decoded again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audit.store import Store
from tests.audit.invoke import invoke
from tests.audit.serve.server import TOKEN, serving

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serve")]
SUITE = """
version: 1
name: endpoint
backend: openai
seed: 3
batch_size: 4
models: {{target: "bundled:target"}}
engine: {{url: "{url}", model: "bundled:target", server: vllm, api: completions, api_key_env: SERVED_KEY, logprobs: 2}}
workloads: [{{name: w, prompts: prompts.jsonl}}]
sampling: {{max_new_tokens: 24}}
arms:
  - name: greedy
    proposer: {{kind: served, gamma: 4}}
    verifier: greedy
    sampling: {{temperature: 0}}
    engine: {{url: "{drafting}"}}
    checks: [greedy_equality, accounting, token_law]
"""
OUTLIERS = """
version: 1
name: outliers
backend: openai
seed: 3
batch_size: 4
models: {{target: "bundled:medium"}}
engine: {{url: "{url}", model: "bundled:medium", server: vllm, api: chat, api_key_env: SERVED_KEY}}
workloads: [{{name: w, prompts: prompts.jsonl}}]
sampling: {{max_new_tokens: 96, temperature: 0}}
arms:
  - name: greedy
    proposer: {{kind: served, gamma: 4}}
    verifier: greedy
    engine: {{url: "{drafting}"}}
    checks: [acceptance_outliers]
"""
COPIED = Path(__file__).parents[3] / "suites" / "prompts" / "copy.jsonl"
PROMPTS = ("The black ladder", "Use", "I can't help", "Write a", "Once upon", "My name is", "The city of", "What is")


def test_probe_reads_it_as_vllm(pair, monkeypatch):
    monkeypatch.setenv("SERVED_KEY", TOKEN)
    result = invoke("probe", pair.url, "--api-key-env", "SERVED_KEY", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["server"]["kind"] == "vllm"
    assert (found["speculates"], found["counters"], found["level"], found["tokens"]) == (True, True, 1, "server")
    outcomes = {each["feature"]: each["outcome"] for each in found["features"]}
    kept = ("chat", "completions", "stream", "repeatable", "logprobs", "token ids", "prompt as ids", "seed", "top_p")
    assert {outcomes[name] for name in (*kept, "top_k", "min_p", "json schema", "drafts per answer")} == {"yes"}


def test_it_keeps_the_contract_of_vllm(pair, monkeypatch):
    monkeypatch.setenv("SERVED_KEY", TOKEN)
    result = invoke("probe", pair.url, "--api-key-env", "SERVED_KEY", "--contract", "--json")
    assert {row["result"] for row in json.loads(result.stdout)["contract"]} == {"holds"}, result.stdout
    assert result.exit_code == 0


def test_an_audit_over_http_sees_the_drafts_that_the_server_counts(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("SERVED_KEY", TOKEN)
    (tmp_path / "plain").mkdir()
    rows = [json.dumps({"id": f"p{at}", "domain": "d", "prompt": text}) for at, text in enumerate(PROMPTS)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(rows) + "\n")
    with serving(tmp_path / "plain", "bundled:target") as plain:
        suite = tmp_path / "suite.yaml"
        suite.write_text(SUITE.format(url=plain.url, drafting=pair.url))
        store = str(tmp_path / "audit.db")
        result = invoke("run", str(suite), "--store", store, "--allow-env", "SERVED_KEY")
        assert result.exit_code in (0, 3), result.stdout + result.stderr
        with Store.open(store, create=False) as opened:
            run = opened.load_run(opened.resolve("latest"))
            verdicts = {each.check: each.verdict.value for each in opened.checks(run.ulid)}
            assert "fault" not in verdicts.values(), verdicts
            (arm,) = run.candidates
            assert arm.counts.source.value == "answers"
            record = opened.load_arm(run.ulid, "greedy")
        drafted, accepted = arm.counts.drafted, arm.counts.accepted
        assert 0 < accepted < drafted
        ids = [each.trace.header.facts["answer"]["id"] for each in record.requests]
        assert all(name.startswith(f"cmpl-{pair.run}-") for name in ids)
    with Store.open(pair.store, create=False, read_only=True) as served:
        keys = [key for key in served.finished(pair.run) if key.case_id in ids]
        own = served.load_arm(pair.run, "served", keys).requests
    # the server's own records say the same
    assert sum(int(each.trace.n_drafted.sum()) for each in own) == drafted
    assert sum(each.trace.n_accepted for each in own) == accepted


def test_one_request_of_another_kind_stands_out_among_the_accounts_of_a_live_server(tmp_path, monkeypatch):
    """Forty texts to copy, which the draft knows, and one line that is none: it keeps about half of its drafts."""
    monkeypatch.setenv("SERVED_KEY", TOKEN)
    copied = [{**json.loads(line), "domain": "copy"} for line in COPIED.read_text().splitlines()[:40]]
    odd = {"id": "odd", "domain": "copy", "messages": [{"role": "user", "content": "99 zebra quartz (boat) ~ lamp"}]}
    suite, store = tmp_path / "suite.yaml", str(tmp_path / "audit.db")
    (tmp_path / "plain").mkdir()
    found = []
    with (
        serving(tmp_path, "bundled:medium", "--draft", "bundled:medium_draft") as pair,
        serving(tmp_path / "plain", "bundled:medium") as plain,
    ):
        suite.write_text(OUTLIERS.format(url=plain.url, drafting=pair.url))
        for rows in (copied, [*copied, odd]):
            (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            result = invoke("run", str(suite), "--store", store, "--allow-env", "SERVED_KEY")
            with Store.open(store, create=False) as opened:
                found += [
                    each for each in opened.checks(opened.resolve("latest")) if each.check == "acceptance_outliers"
                ]
            print(result.exit_code, found[-1].summary)
    clean, with_odd = found
    assert clean.verdict.value == "certified"
    assert with_odd.verdict.value == "fault"
    assert ["odd" in each.request for each in with_odd.findings] == [True]


def test_a_served_run_is_decoded_again_from_its_record(tmp_path):
    import httpx2

    with serving(tmp_path, "bundled:target", "--draft", "bundled:draft", "--rows", "3") as server:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for temperature in (0, 1):
            body = {"prompt": list(PROMPTS), "max_tokens": 24, "temperature": temperature}
            answer = httpx2.post(f"{server.url}/completions", json=body, headers=headers, timeout=300)
            assert answer.status_code == 200
        assert server.stop() == 0
        result = invoke("replay", "latest", "--store", server.store)
        assert result.exit_code == 0, result.stdout + result.stderr
        assert "the same tokens and the same bits" in result.stdout
