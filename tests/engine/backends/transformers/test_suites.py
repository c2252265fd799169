"""The packaged suites, in a reduced size, from the command line: two pass, two must fail."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.audit.agreement import misses, run_seconds, with_trial
from tests.audit.invoke import invoke

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parents[4] / "suites" / "transformers"


def written(name, tmp_path, limit=3, samples=1, tokens=40, change=lambda suite: None):
    """A copy of a packaged suite with fewer prompts."""
    suite = YAML(typ="safe").load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    for workload in suite["workloads"]:
        workload["limit"] = limit
        workload["prompts"] = str((FOLDER / f"{name}.yaml").parent / workload["prompts"])
    suite["samples"], suite["sampling"]["max_new_tokens"] = samples, tokens
    change(suite)
    path = tmp_path / "suite.yaml"
    with path.open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump(suite, stream)
    return path


def run(name, tmp_path, **changes):
    """Run such a copy."""
    path, results = written(name, tmp_path, **changes), tmp_path / "results.json"
    done = invoke("run", str(path), "--store", str(tmp_path / "audit.db"), "--results", str(results))
    return done, json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}


def verdicts(results):
    return {(each["arm"], each["check"]): each["verdict"] for each in results["checks"]}


def small(suite):
    """Two prompts of each kind meet no more than the main situations."""
    waived = ["end_in_draft", "end_at_last_draft", "end_at_bonus", "shared_prefix", "near_tie"]
    for arm in suite["arms"]:
        arm["coverage"] = {"least": 5, "waive": waived}


def default_checks(suite):
    """Small, and each arm judged by the default checks."""
    small(suite)
    for arm in suite["arms"]:
        del arm["checks"]


def test_greedy_passes(tmp_path):
    done, results = run("greedy", tmp_path, limit=2, change=small)
    assert done.exit_code == 0, done.output
    assert set(verdicts(results).values()) == {"certified"}
    assert {arm for arm, _ in verdicts(results)} == {"draft-model", "prompt-lookup", "early-exit"}
    arms = {each["name"]: each for each in results["run"]["arms"]}
    assert arms["draft-model"]["effective"]["rows"] == 1


@pytest.mark.parametrize("name", ["greedy", "sampling"])
@pytest.mark.parametrize("change", [small, default_checks])
def test_a_suite_ends_as_a_trial_plans_it(tmp_path, name, change):
    ended = with_trial(written(name, tmp_path, limit=3, change=change), tmp_path)
    assert misses(ended.plan, ended.results) == {}
    assert ended.codes[0] == ended.codes[1]
    print(f"{name}: planned {ended.plan['seconds']:.0f} s, took {run_seconds(ended.results):.0f} s")


def test_sampling_finds_no_fault(tmp_path):
    """At this size the law can be held, not certified; at this temperature the engine's scores are rounded."""
    done, results = run("sampling", tmp_path, limit=3, change=lambda suite: suite["sampling"].update(temperature=0.7))
    assert done.exit_code in (0, 3), done.output
    found = verdicts(results)
    assert "fault" not in found.values()
    for check in ("accounting", "configuration", "reconciliation"):
        assert found["draft-model", check] == found["prompt-lookup", check] == "certified"


@pytest.mark.parametrize(
    ("name", "caught"), [("ensemble_weight", ("law", "configuration")), ("argmax_draft_soft_q", ("law", "q_contract"))]
)
def test_known_bad_suites_fail(name, caught, tmp_path):
    done, results = run(f"known_bad/{name}", tmp_path, limit=6)
    assert done.exit_code == 1, done.output
    for check in caught:
        assert verdicts(results)["broken", check] == "fault"


def test_an_ensemble_at_temperature_0_is_not_the_target_s_argmax(tmp_path):
    def greedy(suite):
        suite["sampling"]["temperature"] = 0
        suite["arms"][0]["verifier"] = "greedy"
        suite["arms"][0]["checks"] = ["greedy_equality"]

    done, results = run("known_bad/ensemble_weight", tmp_path, limit=5, change=greedy)
    assert done.exit_code == 1, done.output
    assert verdicts(results) == {("broken", "greedy_equality"): "fault"}


BAD = {
    "argmax_drafts": lambda suite: suite["arms"][0].update(engine={"argmax_drafts": True}),
    "eagle": lambda suite: suite["arms"][0]["proposer"].update(kind="eagle"),
    "tree": lambda suite: suite["arms"][0].update(verifier="tree"),
    "assistant_early_exit": lambda suite: suite["arms"][0].update(proposer={"kind": "early_exit", "gamma": 2}),
    "presence_penalty": lambda suite: suite["sampling"].update(presence_penalty=0.5),
}


@pytest.mark.parametrize("word", BAD)
def test_what_cannot_run_is_one_line_and_exit_2(word, tmp_path):
    done, results = run("greedy", tmp_path, change=BAD[word])
    assert done.exit_code == 2
    assert results == {}
    lines = [line for line in done.stderr.splitlines() if word in line]
    assert len(lines) == 1
    assert "Traceback" not in done.output
