"""The Python interface: a run, its verdicts, queries and a request's trace; the page's examples run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import audit
from audit.errors import UserError

SUITE = """
version: 1
name: words
backend: scripted
seed: 5
models: {target: 'scripted:1', draft: 'scripted:2'}
workloads: [{name: words, prompts: prompts.jsonl}]
sampling: {max_new_tokens: 8, temperature: 1, ignore_eos: true}
arms:
  - {name: chain, proposer: {kind: draft_model, model: draft, gamma: 3}, verifier: chain, checks: [replay, accounting]}
"""
PAGE = Path(__file__).parents[3] / "docs" / "python.md"


def write_suite(folder: Path) -> Path:
    (folder / "prompts.jsonl").write_text('{"id": "a", "prompt": "abc"}\n{"id": "b", "prompt": "b"}\n')
    path = folder / "suite.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> audit.RunResult:
    folder = tmp_path_factory.mktemp("api")
    return audit.run(audit.load_suite(write_suite(folder)), store=str(folder / "audit.db"))


@pytest.mark.medium
def test_a_run_has_its_verdicts_and_arms(made):
    assert made.exit_code == made.record().exit_code
    assert made.passed is (made.exit_code == 0)
    verdicts = made.verdicts()
    assert {row["arm"] for row in verdicts} <= {row["arm"] for row in made.arms()}
    assert [row["verdict"] for row in verdicts] == [check.verdict.value for check in made.checks()]
    assert len(verdicts) > 0


@pytest.mark.medium
def test_a_store_finds_its_runs_and_answers_queries(made):
    store = audit.open_store(made.store.url)
    assert [each.ulid for each in store.runs()] == [made.id]
    assert store.run() == store.run(made.id[:10].lower()) == made
    by_name = made.query("acceptance")
    assert by_name == store.query("acceptance")
    assert {"arm", "domain", "requests"} <= by_name[0].keys()
    assert store.sql("SELECT COUNT(*) AS runs FROM run") == [{"runs": 1}]
    assert store.sql("SELECT :x AS x", x=3) == [{"x": 3}]


def test_a_request_s_steps_add_up_to_its_tokens(made):
    arm = made.arms()[-1]["arm"]
    request = made.requests(arm)[0]
    steps = made.steps(arm, request.case_id, request.sample)
    assert [token for step in steps for token in step["emitted"]] == list(request.tokens)
    assert all(len(step["roles"]) == len(step["emitted"]) for step in steps)
    assert all(step["accepted"] <= len(step["drafted"]) for step in steps)
    assert made.trace(arm, request.case_id, request.sample).steps == len(steps)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda run: run.query("nonesuch"), "no query 'nonesuch'"),
        (lambda run: run.query("acceptance", top=3), "has no parameter 'top'"),
        (lambda run: run.requests("nonesuch"), "has no arm 'nonesuch'"),
        (lambda run: run.trace(run.arms()[0]["arm"], "nonesuch"), "has no request 'nonesuch#0'; it begins with: "),
        (lambda run: run.store.run("ZZZZ"), "no run begins with 'ZZZZ'"),
        (lambda run: audit.open_store(run.store.url + ".missing"), "no such store"),
        (lambda run: audit.run("quickstart", baseline="latest", max_tokens=1), "exclude each other"),
        (lambda run: audit.load_suite("nonesuch"), "nonesuch"),
    ],
)
def test_mistakes_are_one_line(made, ask, said):
    with pytest.raises(UserError, match=re.escape(said)):
        ask(made)


def test_importing_audit_is_cheap_and_its_names_are_all_there():
    code = "import sys, audit; print(sorted(set(sys.modules) & {'torch', 'numpy', 'sqlalchemy', 'click', 'scipy'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert all(callable(getattr(audit, name)) for name in audit.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonesuch'"):
        audit.nonesuch  # noqa: B018


@pytest.mark.medium
def test_the_page_s_examples_run_as_they_stand(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    write_suite(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert capsys.readouterr().out
    assert isinstance(names["result"], audit.RunResult)
