"""The quickstart in a small size, and once with a fault, from the command line."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from audit.evidence.verdicts import Verdict
from audit.store import Store
from tests.audit.invoke import invoke

SUITES = Path(__file__).parents[2] / "suites"


def run_small(folder, arms, fault=""):
    """Runs these arms of the quickstart on twelve prompts; the result of the command and the verdicts."""
    suite = YAML(typ="safe").load((SUITES / "quickstart.yaml").read_text(encoding="utf-8"))
    suite["workloads"] = [{"name": "chat", "prompts": "suites:prompts/chat.jsonl", "limit": 12}]
    suite["sampling"]["max_new_tokens"] = 40
    rare = [
        "row_reused",
        "long_prompt",
        "shared_prefix",
        "context_medium",
        "end_in_draft",
        "end_at_last_draft",
        "end_at_bonus",
    ]
    coverage = {"waive": [*rare, "small_residual"]}
    suite["arms"] = [
        each | {"checks": checks, "coverage": coverage} for each in suite["arms"] if (checks := arms.get(each["name"]))
    ]
    if fault:
        suite["arms"][0]["fault"] = fault
    path, store = folder / "suite.yaml", folder / "audit.db"
    with path.open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump(suite, stream)
    done = invoke("run", str(path), "--store", str(store), "--results", str(folder / "results.json"))
    with Store.open(str(store), create=False, read_only=True) as opened:
        return done, {(each.arm, each.check): each.verdict for each in opened.checks(opened.resolve("latest"))}


@pytest.mark.medium
@pytest.mark.xdist_group("small_quickstart")
def test_a_clean_pair_passes(tmp_path):
    arms = {"greedy": ["greedy_equality", "replay"], "rejection": ["replay"]}
    done, verdicts = run_small(tmp_path, arms)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
    assert len(verdicts) == 3
    assert set(verdicts.values()) == {Verdict.CERTIFIED}
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["run"]
    assert found["exit_code"] == 0
    assert found["ulid"] in done.stdout


@pytest.mark.xdist_group("small_quickstart")
@pytest.mark.slow
def test_a_fault_fails_and_is_named(tmp_path):
    done, verdicts = run_small(tmp_path, {"greedy": ["greedy_equality", "replay"]}, "greedy_accepts_top2")
    assert done.exit_code == 1, done.stdout + done.stderr
    assert "FAIL" in done.stdout
    assert verdicts["greedy", "replay"] is Verdict.FAULT
