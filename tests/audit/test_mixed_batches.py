"""Mixed batches as a suite asks for them: on by default, harmless on a clean engine, and fatal for mixed-up rows."""

import json
from dataclasses import replace

import pytest
from ruamel.yaml import YAML

from audit import checks
from audit.checks.base.interface import evaluate
from audit.evidence.verdicts import Verdict
from audit.runs.arms import plan_arms
from audit.selftest.run_arm import gather
from audit.suite.loader import load_suite
from engine.core.registry import FAULTS
from engine.faults.interface import Fault
from engine.sampling.transforms import TargetRows
from tests.audit.invoke import invoke

ARM = {"proposer": {"kind": "draft_model", "model": "draft", "gamma": 3}}
SUITE = {
    "version": 1,
    "name": "mixed",
    "backend": "scripted",
    "models": {"target": "scripted:1", "draft": "scripted:2"},
    "workloads": [{"name": "words", "prompts": "words.jsonl"}],
    "sampling": {"max_new_tokens": 16},
    "arms": [
        {"name": "greedy", "verifier": "greedy", "checks": ["replay"], **ARM},
        {"name": "chain", "verifier": "chain", "sampling": {"temperature": 0.7}, "checks": ["replay"], **ARM},
    ],
}


def write(folder, **changes):
    rows = ({"id": f"w{i}", "prompt": "the quick fox"[: 3 + i % 9] + chr(97 + i)} for i in range(16))
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "suite.yaml"
    with path.open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump({**SUITE, **changes}, stream)
    return str(path)


def ran(folder, path):
    done = invoke("run", path, "--store", str(folder / "audit.db"), "--results", str(folder / "results.json"))
    return done, json.loads((folder / "results.json").read_text(encoding="utf-8"))


def _of_the_row_before(parts):
    """The transform of a row takes the sampling parameters of the row that was computed before it."""
    last = []

    def rows(logits, tree, history, n_prompt, params, *more):
        last.append(params)
        before = last.pop(0) if len(last) > 1 else params
        return TargetRows(logits, tree, history, n_prompt, replace(before, seed=params.seed), *more)

    return replace(parts, rows=rows)


PARAMETERS_OF_THE_ROW_BEFORE = Fault("none known: for this test", _of_the_row_before, situation="mixed_parameters")


@pytest.fixture
def broken(monkeypatch):
    name = "parameters_of_the_row_before"
    monkeypatch.setitem(FAULTS, name, f"{__name__}:PARAMETERS_OF_THE_ROW_BEFORE")
    return [{**each, "fault": name} for each in SUITE["arms"]]


@pytest.mark.medium
def test_rows_mixed_up_are_a_fault_by_default(tmp_path, broken):
    done, found = ran(tmp_path, write(tmp_path, arms=broken))
    assert done.exit_code == 1, done.stderr
    faults = {each["arm"] for each in found["checks"] if (each["check"], each["verdict"]) == ("replay", "fault")}
    assert faults == {"greedy", "chain"}


@pytest.mark.medium
def test_without_neighbours_the_same_fault_passes(tmp_path, broken):
    """The negative control: arms of one set of parameters cannot show it."""
    for arm in evidence(write(tmp_path, arms=broken, mixed=False)).values():
        assert evaluate(checks.load("replay"), arm, {}).verdict is Verdict.CERTIFIED


@pytest.mark.medium
def test_on_a_clean_engine_neighbours_change_no_token_and_are_on_record(tmp_path):
    mixed, alone = (evidence(write(tmp_path, **key)) for key in ({}, {"mixed": False}))
    for name in ("greedy", "chain"):
        ours, theirs = mixed[name].candidate, alone[name].candidate
        assert {each.key: each.tokens for each in ours.requests} == {each.key: each.tokens for each in theirs.requests}
        assert sum(bool(each.trace.header.facts["unlike"]) for each in ours.requests) >= 10
        assert not any(each.trace.header.facts["unlike"] for each in theirs.requests)
        assert ours.effective.mixed["sampling"]["temperature"] == (0.9 if name == "greedy" else 0.0)
        assert theirs.effective.mixed is None
        assert mixed[name].baseline.effective.mixed is None
        assert evaluate(checks.load("replay"), mixed[name], {}).verdict is Verdict.CERTIFIED


def evidence(path):
    suite = load_suite(path)
    return {arm.name: gather(replace(suite, arms=(replace(arm, checks={"replay": {}}),))) for arm in suite.arms}


def planned(folder, **changes):
    return {arm.name: arm.plan.mixed for arm in plan_arms(load_suite(write(folder, **changes)))}


def test_candidates_are_mixed_where_a_row_is_free_and_no_clock_runs(tmp_path):
    both = [{**each, "checks": ["replay", "seed", "prefix_measurable"]} for each in SUITE["arms"]]
    found = planned(tmp_path, arms=both)
    assert {name for name, mixed in found.items() if not mixed} == {
        *("baseline/greedy", "baseline/greedy/alone", "baseline/T=0.7", "greedy/alone", "chain/alone")
    }
    assert not any(planned(tmp_path, batch_size=1).values())
    timed = [{**each, "checks": ["performance"]} for each in SUITE["arms"]]
    assert not any(planned(tmp_path, arms=timed).values())
    beside = [{**each, "beside": {"temperature": 0.5}} for each in SUITE["arms"]]
    assert not any(planned(tmp_path, arms=beside).values())


@pytest.mark.medium
def test_an_engine_that_learns_from_requests_gets_no_neighbours(tmp_path):
    arms = [{**SUITE["arms"][0], "proposer": {"kind": "suffix", "gamma": 3, "options": {"cached_requests": 8}}}]
    assert evidence(write(tmp_path, arms=arms))["greedy"].candidate.effective.mixed is None


def test_other_engines_are_not_mixed(tmp_path):
    arms = [{**SUITE["arms"][0], "proposer": {"kind": "ngram", "gamma": 3}}]
    other = {"backend": "vllm", "models": {"target": "hf:org/name"}, "arms": arms}
    assert not load_suite(write(tmp_path, **other)).mixed
    refused = invoke("validate", write(tmp_path, **other, mixed=True))
    assert refused.exit_code == 2
    assert "backend vllm has no mixed batches; write beside: in an arm instead" in refused.stderr
