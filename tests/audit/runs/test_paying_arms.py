"""Arms whose drafts are as long as they pay, from the suite to the verdict."""

from __future__ import annotations

import json

import pytest

from audit.store import Store
from tests.audit.invoke import invoke
from tests.audit.runs.scripted_suites import suite_file

CHECKS = "[accounting, replay, draft_anchor, gamma_invariance, prefix_measurable]"
ARMS = f"""arms:
  - name: greedy
    proposer: {{kind: draft_model, model: draft, gamma: 4, options: {{token_cost: 0.3}}}}
    verifier: greedy
    checks: [accounting, replay, draft_anchor, greedy_equality]
  - name: chain
    proposer: {{kind: draft_model, model: draft, gamma: 4, options: {{token_cost: 0.3}}}}
    verifier: chain
    sampling: {{temperature: 1}}
    checks: {CHECKS}
"""


@pytest.fixture
def suite(tmp_path):
    path = suite_file(tmp_path)
    text = path.read_text().replace("max_new_tokens: 12", "max_new_tokens: 64").replace("samples: 2", "samples: 12")
    path.write_text(text[: text.index("arms:")].replace("directed: off", "least: 0") + ARMS)
    return path


@pytest.mark.medium
def test_every_check_passes_and_lengths_differ(suite, tmp_path):
    store, results = str(tmp_path / "s.db"), tmp_path / "results.json"
    done = invoke("run", str(suite), "--store", store, "--results", str(results))
    found = json.loads(results.read_text())["checks"]
    assert {(each["arm"], each["check"]): each["verdict"] for each in found if each["verdict"] != "certified"} == {}
    assert done.exit_code == 0, done.stderr
    assert lengths_in(store) >= {0, 1, 2, 3}


def lengths_in(store):
    with Store.open(store, create=False, read_only=True) as opened:
        arm = opened.load_arm(opened.resolve("latest"), "chain")
        assert arm.effective.steady_drafts is None
        assert arm.effective.facts["proposer_options"]["token_cost"] == 0.3
        return {int(n) for each in arm.requests for n in each.trace.n_drafted}


def test_a_tree_is_refused_in_one_line(suite):
    text = suite.read_text().replace("kind: draft_model, model: draft", "kind: suffix")
    suite.write_text(text.replace("{token_cost: 0.3}", "{token_cost: 0.3, tree: true}"))
    done = invoke("run", str(suite))
    assert done.exit_code == 2
    assert "suffix: option token_cost is for chains" in done.stderr
    assert done.stderr.count("\n") == 1
