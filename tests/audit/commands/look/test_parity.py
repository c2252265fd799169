"""`audit parity --instances`: real processes of a suite, each with a run of its own, and a suite that cannot run."""

from __future__ import annotations

import json

import pytest

from audit.store import Store
from tests.audit.invoke import invoke

SUITE = """
version: 1
name: instances
backend: scripted
seed: 11
samples: 2
models: {target: "scripted:1", draft: "scripted:2"}
workloads: [{name: words, prompts: prompts.jsonl}]
sampling: {max_new_tokens: 32, temperature: 1}
arms:
  - {name: drafted, proposer: {kind: draft_model, model: draft, gamma: 4}, verifier: chain, checks: [liveness]}
"""
PROMPTS = 8


@pytest.fixture
def suite(tmp_path):
    lines = [json.dumps({"id": f"p{at}", "prompt": chr(ord("a") + at) * 3}) for at in range(PROMPTS)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    return path


def compared(suite, store, *more):
    return invoke("parity", str(suite), "--instances", "2", "--store", str(store), *more)


@pytest.mark.slow
def test_fresh_processes_are_runs_of_their_own_and_do_the_same(suite, tmp_path):
    store = tmp_path / "audit.db"
    done = compared(suite, store, "--json", "--drift", "0.5")
    assert done.exit_code == 0, done.output
    assert [f"instance {at} of 2: audit run {suite}" in done.stderr for at in (1, 2)] == [True, True]
    document = json.loads(done.stdout)
    runs = [one["run"] for one in document["runs"]]
    with Store.open(str(store), create=False, read_only=True) as opened:
        assert len({opened.resolve(run) for run in runs}) == 2
    assert {one["compared"]: one["verdict"] for one in document["results"]} == dict.fromkeys(
        ("acceptance", "tokens", "logprobs", "drift", "speculating"), "certified"
    )
    (tokens,) = [one for one in document["results"] if one["compared"] == "tokens"]
    assert tokens["summary"].startswith("16 of 16 answers equal")


@pytest.mark.medium
def test_a_process_that_cannot_run_is_one_line_with_its_mend(suite, tmp_path):
    suite.write_text(SUITE.replace("kind: draft_model", "kind: drafts_model"))
    done = compared(suite, tmp_path / "audit.db")
    assert (done.exit_code, done.stdout) == (2, "")
    *_, line = done.stderr.strip().splitlines()
    assert line.startswith("audit: an instance could not run: ")
    assert "drafts_model" in line
