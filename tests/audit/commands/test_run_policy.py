"""`audit run --policy`: one command that runs, decides and exits as the policy says."""

from __future__ import annotations

import pytest

from audit.store import Store
from tests.audit.invoke import invoke
from tests.audit.runs.scripted_suites import suite_file

pytestmark = pytest.mark.medium
POLICY = """\
version: 1
name: replayed
require: [{claim: replay, checks: [replay]}]
evidence: {min_tokens: 5, max_age: 30d}
subjects: {named: [target]}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a suite whose `law` has too few tokens, so that the run alone is undecided."""
    monkeypatch.chdir(tmp_path)
    path = suite_file(tmp_path)
    text = path.read_text().replace("directed: off", "directed: off, least: 0")
    path.write_text(text[: text.index("  - name: gumbel")].replace("checks: [replay]\n", "checks: [replay, law]\n"))
    (tmp_path / "policy.yaml").write_text(POLICY)
    given = ("--store", "audit.db", "--results", "results.json")

    def started(*options: str, fault: str = ""):
        if fault:
            path.write_text(path.read_text().replace("    verifier: chain", f"    verifier: chain\n    fault: {fault}"))
        return invoke("run", "suite.yaml", *given, *options)

    return started


def decisions():
    with Store.open("audit.db", create=False, read_only=True) as store:
        return [decision.decision for decision in store.decisions(store.resolve("latest"))]


def test_a_run_that_is_undecided_alone_is_allowed_by_a_policy_that_asks_for_less(run):
    assert run().exit_code == 3
    allowed = run("--policy", "policy.yaml")
    assert allowed.exit_code == 0, allowed.stdout
    assert "UNDECIDED" in allowed.stdout
    assert "allow" in allowed.stdout.splitlines()[-1]
    assert decisions() == ["allow"]


def test_a_broken_engine_is_blocked(run):
    blocked = run("--policy", "policy.yaml", fault="accepts_everything")
    assert blocked.exit_code == 1
    assert decisions() == ["block"]


def test_a_policy_that_wants_more_does_not_allow(run):
    """An inconclusive check that the policy requires blocks."""
    assert run("--policy", "standard").exit_code == 1
    assert decisions() == ["block"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--policy", "standart"), "did you mean standard"),
        (("--policy", "policy.yaml", "--shard", "1/2"), "--shard and --policy exclude each other"),
    ],
)
def test_nothing_runs_for_a_policy_that_cannot_decide_on_it(run, tmp_path, options, line):
    refused = run(*options)
    assert refused.exit_code == 2
    assert line in refused.stderr
    assert not (tmp_path / "audit.db").exists()
