"""Faults in default suites: caught there, and never passed where their situation does not occur."""

import json
from dataclasses import replace

import pytest
from ruamel.yaml import YAML

from audit.evidence.coverage import expected
from audit.evidence.coverage.count import UNCOUNTED
from audit.evidence.coverage.rule import CoverageRule
from audit.runs.judge import arm_exit_code, judge_arm
from audit.selftest import work
from audit.selftest.default_suite import (
    COLUMNS,
    DefaultDetection,
    default_suite,
    detect_by_default,
    document,
    judged_suite,
)
from audit.selftest.detect import DetectionLimits
from audit.selftest.run_arm import alone, gather
from audit.suite.loader import load_suite
from docs.tools import fault_page
from engine import faults
from engine.core.types import SamplingParams
from tests.audit.invoke import invoke
from tests.audit.selftest.without_situations import WITHOUT, only_floor, suite_without
from tests.support.tiers import slow_unless

LIMITS = DetectionLimits(seeds=1, record=16_384, outside=256)
CELLS = fault_page.known_cells(fault_page.PAGE.read_text(encoding="utf-8"))
CAUGHT = [name for name, row in CELLS.items() if row.caught]
NAMED = (
    "recovered_from_next_row",
    "numbers_of_the_row",
    "parameters_of_first_row",
    "penalties_without_draft",
    "drafted_end_ignored",
    "call_recorded_twice",
    "filter_not_flushed_at_length",
    "tree_mask_leaks",
)
"""One fault of each of several groups of situations: drafting, rows, batch, parameters, ends, calls, filters, trees."""


@pytest.mark.medium
@pytest.mark.parametrize("name", NAMED)
def test_the_default_checks_catch_a_fault_in_a_few_short_answers(name):
    scenario = faults.load(name).scenario
    short = replace(scenario, sampling=replace(scenario.sampling, max_new_tokens=16))
    judged = judged_suite(default_suite(short, name, 0, 16 * 16))
    assert arm_exit_code(judged.results.values()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUGHT)
def test_the_default_checks_of_a_default_suite_catch_the_fault(name):
    found = detect_by_default(name, LIMITS)
    assert found.caught, found.verdicts


def test_the_page_has_every_fault_caught():
    assert [name for name in faults.REGISTRY if name not in CAUGHT] == []


def test_every_fault_shows_in_every_answer_or_needs_a_situation_with_a_floor():
    situations = {faults.load(name).situation for name in faults.REGISTRY}
    assert situations - set(expected.ALWAYS) <= set(WITHOUT)


def test_all_but_prompts_are_the_loaders_defaults(tmp_path):
    """A suite file that states the scenario and nothing else."""
    scenario = faults.load("sqrt_acceptance").scenario
    ours = default_suite(scenario, "sqrt_acceptance", 5, 1024)
    (tmp_path / "words.jsonl").write_text(json.dumps({"id": "p0", "prompt": ours.cases[0].prompt}))
    arm = {
        "name": "candidate",
        "proposer": {"kind": "draft_model", "model": "draft", "gamma": scenario.gamma},
        "verifier": str(scenario.protocol),
        "sampling": {"temperature": scenario.sampling.temperature},
        "fault": "sqrt_acceptance",
    }
    document = {
        "version": 1,
        "name": "selftest",
        "backend": "scripted",
        "models": {name: model.source for name, model in ours.models.items()},
        "workloads": [{"name": "words", "prompts": "words.jsonl"}],
        "arms": [arm],
    }
    with (tmp_path / "suite.yaml").open("w", encoding="utf-8") as stream:
        YAML(typ="safe").dump(document, stream)
    theirs = load_suite(tmp_path / "suite.yaml")
    assert (ours.batch_size, ours.samples, ours.mixed) == (theirs.batch_size, theirs.samples, theirs.mixed)
    # the loader notes that it chose the level of rows
    assert ours.arms == tuple(replace(arm, requested_record=None) for arm in theirs.arms)
    assert ours.models == theirs.models


@pytest.mark.medium
@pytest.mark.parametrize("broken", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["broken", "clean"])
@pytest.mark.parametrize("situation", slow_unless(WITHOUT, [name for name in WITHOUT if name != "near_tie"]))
def test_without_its_situation_neither_engine_passes(situation, broken):
    """Only this floor is on: it alone holds the pass back, and without it the broken engine would pass."""
    suite = suite_without(situation, WITHOUT[situation].fault if broken else None)
    (floored,) = only_floor(suite, situation).arms
    least = floored.coverage.floor(situation)
    evidence = gather(replace(suite, arms=(floored,)))
    judged = judge_arm(evidence, floored.judged)
    assert judged.coverage.occurred[situation] < least
    assert judged.floors == {situation: least}
    assert arm_exit_code(judged.results.values()) == 3
    assert any(
        f"{situation} {judged.coverage.occurred[situation]} of {least}" in result.summary
        for result in judged.results.values()
    )
    waived = judge_arm(evidence, replace(floored, coverage=CoverageRule(least=0)).judged)
    assert arm_exit_code(waived.results.values()) == 0


@pytest.mark.slow
@pytest.mark.parametrize("situation", WITHOUT)
def test_without_its_situation_the_default_checks_end_undecided(situation):
    for fault in (None, WITHOUT[situation].fault):
        judged = judged_suite(suite_without(situation, fault))
        assert arm_exit_code(judged.results.values()) == 3
        assert any(situation in result.details.get("short_of", {}) for result in judged.results.values())


@pytest.mark.medium
def test_every_situation_with_a_floor_has_a_suite_without_it():
    """Arms with every setting that asks for a situation: trees, chains, filters, tools, early ends, and a grammar."""
    sampling = SamplingParams(
        1.0,
        top_p=0.9,
        frequency_penalty=0.5,
        bad_words=((1,),),
        min_tokens=4,
        stop=("zz",),
        stop_token_ids=(2,),
        max_new_tokens=8,
    )
    tree, steady = (faults.load(name).scenario for name in ("tree_mask_leaks", "sqrt_acceptance"))
    asked = set()
    filtered, masked = (faults.load(name).scenario for name in ("filter_per_step", "mask_on_draft_only"))
    every = (tree, steady, filtered, replace(steady, options={"stop_below": 0.3}))
    # a grammar excludes a minimum length
    for scenario in (*(replace(each, sampling=sampling, tools=True) for each in every), masked):
        suite = default_suite(scenario, None, 0, 64)
        checks = {"accounting": {}, "draft_anchor": {}, "no_leak": {}}
        asked |= set(judge_arm(alone(suite), replace(suite.arms[0], checks=checks).judged).floors)
    assert asked == set(WITHOUT)
    assert {name: faults.load(change.fault).situation for name, change in WITHOUT.items()} == {
        name: name for name in WITHOUT
    }
    assert set(WITHOUT) >= expected.ONCE


def test_an_arm_is_not_counted_whose_checks_claim_nothing_about_speculation():
    suite = default_suite(faults.load("sqrt_acceptance").scenario, None, 0, 64)
    judged = judge_arm(alone(suite), replace(suite.arms[0], checks={"liveness": {}}).judged)
    assert (judged.coverage, judged.floors) == (UNCOUNTED, {})
    assert set(judged.results) == {"liveness"}


def test_measured_cells_name_checks_and_how_the_others_end():
    entries = document([SEEN, PASSED, OPEN])
    cells = fault_page.measured_cells(json.loads(json.dumps(entries)))
    assert [row.caught_by for row in cells.values()] == [
        *("replay (1024)", "none: passes (1024)", "none: undecided (1024)")
    ]
    assert [row.caught for row in cells.values()] == [True, False, False]


def found(name, code, **verdicts):
    counts = {check: {verdict: 1} for check, verdict in verdicts.items()}
    return DefaultDetection(name, code == 1, 1024, 1, 12, counts, {code: 1})


@pytest.fixture
def detections(monkeypatch):
    def install(*listed):
        by_name = {each.fault: each for each in listed}
        monkeypatch.setattr(work, "detect_by_default", lambda name, limits: by_name[name])
        return [part for each in listed for part in ("--fault", each.fault)]

    return install


SEEN = found("seed_ignored", 1, replay="fault", law="inconclusive")
PASSED = found("draft_one_behind", 0, replay="certified")
OPEN = found("hidden_states_shifted", 3, replay="inconclusive")


def test_the_command_prints_what_the_default_checks_catch(detections, tmp_path):
    chosen, out = detections(SEEN), tmp_path / "found.json"
    done = invoke("selftest", "--default-suite", *chosen, "--jobs", "1", "--json", str(out), "--wide")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].split("  ")[0] == COLUMNS[0]
    assert done.stdout.splitlines()[1].split() == [
        *("seed_ignored", "recovered_token", "12", "1024", "replay", "law", "1")
    ]
    (entry,) = json.loads(out.read_text())["detections"]
    assert (entry["caught_by"], entry["verdicts"]["law"]) == (["replay"], {"inconclusive": 1})


def test_a_fault_that_is_not_caught_fails_the_command_with_its_exit_code(detections):
    done = invoke("selftest", "--default-suite", *detections(SEEN, PASSED, OPEN), "--jobs", "1")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-2:] == [
        "FAILED: passed: draft_one_behind",
        "FAILED: undecided: hidden_states_shifted",
    ]


def test_default_suites_have_no_page(tmp_path):
    done = invoke("selftest", "--default-suite", "--markdown", str(tmp_path / "page.md"))
    assert done.exit_code == 2
    assert "--markdown has no page for --default-suite; use --json" in done.stderr
