"""Arms of suites and other proposers: served as they run."""

from __future__ import annotations

import json

import httpx2
import pytest

from audit.store import Store
from tests.audit.invoke import invoke
from tests.audit.serve.server import TOKEN, serving

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("serve")]
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
SUITE = """
version: 1
name: own
backend: scripted
batch_size: 3
models: {target: "scripted:1", draft: "scripted:2"}
workloads: [{name: w, prompts: prompts.jsonl}]
sampling: {max_new_tokens: 8}
arms:
  - name: cascade
    proposer: {kind: draft_model, model: draft, gamma: 3}
    verifier: chain
    sampling: {temperature: 1}
    checks: [replay]
  - name: filtered
    proposer: {kind: ngram, gamma: 3}
    verifier: greedy
    sampling: {temperature: 0}
    filters: [{kind: patterns, action: redact, rules: rules.json}]
    checks: [no_leak]
"""


def tokens_of(server, **body):
    given = {"prompt": "abc", "max_tokens": 40, "temperature": 0, "return_token_ids": True}
    answer = httpx2.post(f"{server.url}/completions", json=given | body, headers=HEADERS, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"id": "p", "domain": "d", "prompt": "abc"}\n')
    (tmp_path / "rules.json").write_text('{"categories": {"letters": ["dn", "pd"]}, "whole_words": false}')
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    return str(path)


@pytest.mark.parametrize("proposer", ["ngram", "suffix"])
def test_a_proposer_without_a_model_changes_no_answer(script, tmp_path, proposer):
    with serving(tmp_path, "scripted:1", "--proposer", proposer) as server:
        for seed in (0, 1):
            asked = {"temperature": 1, "seed": seed}
            assert tokens_of(server, **asked)["token_ids"] == tokens_of(script, **asked)["token_ids"]
        page = httpx2.get(f"{server.root}/metrics").text
        assert "vllm:spec_decode_num_drafts_total" in page


def test_a_server_that_drafts_nothing_has_no_counters_of_drafts(tmp_path):
    with serving(tmp_path, "scripted:1") as server:
        tokens_of(server)
        assert "spec_decode" not in httpx2.get(f"{server.root}/metrics").text


def test_an_arm_of_a_suite_is_served_by_its_own_rule(suite, tmp_path, script):
    with serving(tmp_path, suite, "--arm", "cascade") as server:
        assert server.model == "scripted:1"
        assert tokens_of(server)["token_ids"] == tokens_of(script)["token_ids"]
        assert server.stop() == 0
        with Store.open(server.store, create=False) as store:
            (arm,) = store.load_run(server.run).arms
            assert (arm.name, arm.spec["verifier"], arm.spec["gamma"], arm.spec["rows"]) == ("cascade", "chain", 3, 3)


def test_an_answer_leaves_through_the_filters_of_its_arm(suite, tmp_path):
    with serving(tmp_path, suite, "--arm", "filtered") as server:
        whole = tokens_of(server)["text"]
        assert "[redacted]" in whole
        body = {"prompt": "abc", "max_tokens": 40, "temperature": 0, "stream": True}
        parts = httpx2.post(f"{server.url}/completions", json=body, headers=HEADERS, timeout=60).text
        lines = [line.removeprefix("data: ") for line in parts.splitlines() if line.startswith("data: {")]
        assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == whole
        assert len(lines) > 3


def test_the_numerics_of_the_target_are_on_record(tmp_path):
    with serving(tmp_path, "bundled:target", "--numerics", "fast") as server:
        tokens_of(server, max_tokens=4)
        assert server.stop() == 0
        with Store.open(server.store, create=False) as store:
            (arm,) = store.load_run(server.run).arms
            assert arm.effective.numerics.mode == "fast"


def test_numerics_are_not_for_a_suite(suite, tmp_path):
    done = invoke("serve", suite, "--arm", "cascade", "--numerics", "fast", "--no-store")
    assert done.exit_code == 2
    assert done.stderr.startswith("audit: --numerics is for a model; in a suite, set `numerics`")
