"""A stored run decoded again: the same tokens and bits from the record alone, and a clear word where not."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from importlib.resources import files

import pytest
import torch

from audit.api.running import Quiet
from audit.errors import UserError
from audit.runs.interruptions import Interrupted
from audit.runs.prepare import prepare
from audit.runs.replay import replay_run
from audit.runs.runner import resume, run
from audit.store import Store
from audit.suite.loader import find_suite, load_suite
from tests.audit.invoke import invoke
from tests.audit.runs.round_suites import suite_file
from tests.support.observers import StopsAfter

ARMS = ("baseline/T=1", "chain")
BUNDLED = """
version: 1
name: again
batch_size: 2
record: scalars
models: {{target: '{target}', draft: 'bundled:draft'}}
workloads: [{{name: words, prompts: prompts.jsonl}}]
sampling: {{max_new_tokens: 12, stop: ["e "]}}
filters:
  - {{kind: patterns, action: redact, options: {{categories: {{found: [time, was]}}}}}}
  - {{kind: patterns, side: prompt, action: refuse, options: {{categories: {{never: [forbidden]}}}}}}
arms:
  - name: chain
    proposer: {{kind: ngram, gamma: 3}}
    verifier: chain
    sampling: {{temperature: 0.8, repetition_penalty: 1.1}}
    checks: [replay, coupled_equality]
  - name: beside
    proposer: {{kind: draft_model, model: draft, gamma: 3}}
    verifier: gumbel
    sampling: {{temperature: 1, structured: {{choice: ["red apple", "red pear"]}}}}
    beside: {{temperature: 0, max_new_tokens: 4}}
    checks: [coupled_equality]
"""
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
PROMPTS = [
    {"id": "a", "prompt": "Once upon a"},
    {"id": "b", "prompt": "the forbidden word"},
    {"id": "c", "messages": [{"role": "user", "content": "look"}], "tools": [TOOL]},
]


def scripted_run(folder, **options):
    with Store.open(str(folder / "audit.db"), create=True) as store:
        prepared = prepare(load_suite(suite_file(folder, more=", replay: {}", **options)))
        return run(prepared, store, Quiet()).run


@pytest.mark.medium
def test_every_token_and_every_digest_comes_again_without_the_suite(tmp_path):
    name = scripted_run(tmp_path)
    for file in ("suite.yaml", "prompts.jsonl"):
        (tmp_path / file).unlink()
    result = invoke("replay", "--json", "--store", str(tmp_path / "audit.db"))
    found = json.loads(result.stdout)
    assert (result.exit_code, found["run"]) == (0, name)
    assert [(each["arm"], each["requests"], each["same"]) for each in found["arms"]] == [(arm, 6, 6) for arm in ARMS]
    assert all(each["digests"] == each["same_digests"] > 100 for each in found["arms"])


@pytest.mark.medium
def test_what_no_seed_determines_does_not_come_again(tmp_path):
    scripted_run(tmp_path, fault="unseeded_draft")
    result = invoke("replay", "--store", str(tmp_path / "audit.db"))
    assert result.exit_code == 1
    assert "chain/words/w" in result.stdout
    assert "now it is" in result.stdout
    (baseline,) = [line.split() for line in result.stdout.splitlines() if line.startswith("baseline/T=1 ")]
    assert baseline[1] == baseline[2] == "6", "the baseline has no draft"


@pytest.mark.medium
def test_grammars_filters_tools_neighbours_and_refused_prompts_come_again(tmp_path):
    shutil.copytree(str(files("engine") / "bundled" / "target"), tmp_path / "target")
    (tmp_path / "suite.yaml").write_text(BUNDLED.format(target=tmp_path / "target"))
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    url = str(tmp_path / "audit.db")
    with Store.open(url, create=True) as store:
        run(prepare(load_suite(tmp_path / "suite.yaml")), store, Quiet())
        stored = store.load_run(store.resolve("latest"))
        found = replay_run(store, stored, lambda _arm: None)
    added = {arm.name: arm.counts.directed for arm in stored.arms}
    assert found.same, found
    assert {"chain", "beside"} <= {each.arm for each in found.arms}
    assert {each.requests - added[each.arm] for each in found.arms} == {3}
    config = tmp_path / "target" / "generation_config.json"
    config.write_text(config.read_text() + "\n")
    result = invoke("replay", "--store", url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "has changed since the run; restore it" in result.stderr


DEMANDING = """
version: 1
name: demanding
models: {target: 'bundled:target'}
workloads: [{name: words, prompts: prompts.jsonl, tool_choice: required}]
sampling: {max_new_tokens: 32}
arms:
  - name: greedy
    proposer: {kind: ngram, gamma: 3}
    verifier: greedy
    checks: [constraint_replay]
"""


@pytest.mark.medium
def test_demanded_calls_come_again(tmp_path):
    (tmp_path / "suite.yaml").write_text(DEMANDING)
    (tmp_path / "prompts.jsonl").write_text(json.dumps(PROMPTS[2]) + "\n")
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        run(prepare(load_suite(tmp_path / "suite.yaml")), store, Quiet())
        assert replay_run(store, store.load_run(store.resolve("latest")), lambda _arm: None).same


@pytest.mark.medium
def test_a_run_that_was_interrupted_comes_again_call_by_call(tmp_path):
    path = suite_file(tmp_path, more=", replay: {}")
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        with pytest.raises(Interrupted) as stopped:
            run(prepare(load_suite(path)), store, StopsAfter(9))
        resume(prepare(load_suite(path)), store, stopped.value.run, Quiet())
        assert replay_run(store, store.load_run(stopped.value.run), lambda _arm: None).same


@pytest.mark.medium
def test_another_engine_cannot_be_run_again(tmp_path):
    name = scripted_run(tmp_path)
    with Store.open(str(tmp_path / "audit.db"), create=False) as store:
        stored = replace(store.load_run(name), suite_document={"backend": "vllm"})
        with pytest.raises(UserError, match="backend vllm decoded it; only our own engines can run it again"):
            replay_run(store, stored, lambda _arm: None)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fixed", "tiled"])
def test_the_quickstart_gives_every_digest_again(tmp_path, mode):
    quickstart = find_suite("quickstart")
    text = quickstart.read_text(encoding="utf-8").replace("prompts: prompts/", f"prompts: {quickstart.parent}/prompts/")
    suite, url = tmp_path / "quickstart.yaml", str(tmp_path / "audit.db")
    plain = "target: bundled:target"
    assert text.count(plain) == 1
    suite.write_text(text.replace(plain, f"target: {{source: 'bundled:target', numerics: {mode}}}"), encoding="utf-8")
    assert invoke("run", str(suite), "--store", url, "--results", str(tmp_path / "r.json")).exit_code == 0
    found = invoke("replay", "--store", url)
    assert found.exit_code == 0, found.output
    assert "the same tokens and the same bits" in found.stdout


@pytest.mark.medium
def test_what_differs_in_the_environment_is_listed(tmp_path, monkeypatch):
    scripted_run(tmp_path)
    url = str(tmp_path / "audit.db")
    threads = torch.get_num_threads()
    unchanged = invoke("replay", "--store", url, "--threads", str(threads))
    monkeypatch.setattr(
        "audit.evidence.environment.package_versions", lambda _names=(): {"torch": "9.9.9", "specaudit": "0"}
    )
    try:
        changed = invoke("replay", "--store", url, "--threads", str(threads + 1))
    finally:
        torch.set_num_threads(threads)
    assert "torch" not in unchanged.stdout
    assert re.search(r"packages.torch +\S+ +9\.9\.9\n", changed.stdout)
    assert re.search(rf"hardware.torch_threads +{threads} +{threads + 1}", changed.stdout)
