"""Plans hold what they promise: units are known, sizes decide, and a run of the planned size ends as planned."""

from __future__ import annotations

import json

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from scipy.stats import norm, t

import schemas
from audit.api.running import Quiet
from audit.checks import REGISTRY, load
from audit.checks.base.interface import Design, PlanAssumptions
from audit.checks.base.plans import plan_acceptance, plan_law
from audit.evidence.environment import hardware
from audit.evidence.records import Level
from audit.evidence.verdicts import Verdict
from audit.runs.arms import plan_arms
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.runs.sizing import ANSWERS, PER_TOKEN, PROMPTS, RATE, REQUESTS, RunHistory, history, plan
from audit.stats.power import MOST
from audit.store import Store
from audit.suite.loader import load_suite
from engine.core.types import RecordLevel
from tests.audit.agreement import misses
from tests.audit.invoke import invoke
from tests.support.tiers import slow_unless

SUITE = """
version: 1
name: planned
backend: scripted
seed: 5
samples: {samples}
models: {{target: 'scripted:1', draft: 'scripted:2'}}
workloads: [{{name: words, prompts: prompts.jsonl}}]
sampling: {{max_new_tokens: 40}}
record: {record}
coverage: {{directed: off, least: 1, waive: [nothing_drafted, small_residual, rows_finish_together, length_in_draft]}}
arms:
  - name: chain
    proposer: {{kind: draft_model, model: draft, gamma: 3}}
    verifier: chain
    sampling: {{temperature: 1}}
    checks: {{replay: {{}}, law: {{leak_margin: {margin}}}, acceptance_theory: {{margin: {margin}}}}}
"""
DESIGN = Design(requests=4, prompts=4, tokens=400, gamma=3, greedy=False, level=Level.L4)


def suite_of(folder, samples=2, margin=0.1, record="full"):
    path = folder / "suite.yaml"
    path.write_text(SUITE.format(samples=samples, margin=margin, record=record))
    rows = [{"id": f"w{i}", "prompt": "abc"[: 1 + i % 3] * (i + 1)} for i in range(8)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", list(REGISTRY))
@pytest.mark.parametrize("greedy", [True, False])
def test_every_check_plans_in_a_unit_that_the_suite_is_counted_in(name, greedy):
    check = load(name)
    need = check.plan(check.defaults, Design(4, 4, 400, 3, greedy, Level.L4))
    assert need is None or (need.unit in {*PER_TOKEN, PROMPTS, REQUESTS, ANSWERS} and 0 < need.units < MOST)


@pytest.mark.parametrize("spread", [0.05, 0.3])
def test_nine_of_ten_clean_runs_of_the_planned_size_are_within_the_margin(spread):
    runs, generator = 20_000, np.random.default_rng(1)
    design = Design(4, 4, 400, 3, greedy=False, level=Level.L4, assumed=PlanAssumptions(spread))
    law = plan_law({"confidence": 0.99, "leak_margin": 0.02, "min_tokens": 1}, design)
    errors = generator.normal(size=runs) * spread / np.sqrt(law.units)
    certified = np.mean(errors + norm.ppf(0.99) * spread / np.sqrt(law.units) <= 0.02)
    # the standard error of the share is 0.0021
    assert certified == pytest.approx(0.9, abs=0.01)
    acceptance = plan_acceptance({"confidence": 0.99, "margin": 0.02}, design)
    errors = np.abs(generator.normal(size=runs)) * spread / np.sqrt(acceptance.units)
    certified = np.mean(errors + norm.ppf(0.995) * spread / np.sqrt(acceptance.units) <= 0.02)
    assert certified == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("prompts", [8, 40])
def test_nine_of_ten_runs_of_the_answers_that_two_sample_plans_are_within_the_margin(prompts):
    runs, generator, spread = 4000, np.random.default_rng(2), 0.3
    design = Design(2 * prompts, prompts, 400, 3, greedy=False, level=Level.L0, assumed=PlanAssumptions(2 * spread))
    need = load("two_sample").plan({"margin": 0.05, "min_prompts": 2}, design)
    answers = need.units / prompts
    changes = generator.normal(size=(runs, prompts)) * spread * np.sqrt(2 / answers)
    error = changes.std(axis=1, ddof=1) / np.sqrt(prompts)
    certified = np.mean(np.abs(changes.mean(axis=1)) + t.ppf(0.99, prompts - 1) * error <= 0.05)
    # the error of few prompts varies itself
    assert certified == pytest.approx(0.9, abs=0.02 if prompts == 40 else 0.1)


def test_replay_never_decides_without_rows_and_decides_at_once_with_them():
    check = load("replay")
    assert check.plan(check.defaults, DESIGN).units == 1
    sparse = Design(4, 4, 400, 3, greedy=False, level=Level.L3, record=RecordLevel.TOPK)
    assert check.plan(check.defaults, sparse).units == 1
    partial = Design(4, 4, 400, 3, greedy=False, level=Level.L1, record=RecordLevel.SCALARS)
    assert check.plan(check.defaults, partial).units == MOST


def test_without_a_run_the_plan_rests_on_stated_defaults(tmp_path):
    suite = load_suite(suite_of(tmp_path))
    found = plan(suite, RunHistory())
    assert {each.basis for each in found.checks} == {"defaults"}
    assert found.rate == RATE
    assert "default" in found.rate_from
    assert [each.arm for each in found.arms] == [each.name for each in plan_arms(suite)]
    assert found.tokens == sum(16 * 40 for _ in found.arms)
    assert found.seconds == pytest.approx(found.tokens / RATE)


@pytest.mark.medium
@pytest.mark.parametrize(("samples", "margin"), slow_unless([(2, 0.2), (2, 0.02)], [(2, 0.02)]))
def test_a_run_ends_as_its_plan_from_the_run_before_says(tmp_path, samples, margin):
    suite = load_suite(suite_of(tmp_path, samples, margin))
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        first = run(prepare(suite), store, Quiet())
        told = history(store, suite.name, hardware())
        verdicts = {each.check: each for each in store.checks(first.run)}
    found = plan(suite, told)
    assert f"run {first.run}" in found.rate_from
    for each in found.checks:
        assert each.given == verdicts[each.check].n
        assert (each.outcome == "enough") == (verdicts[each.check].verdict is Verdict.CERTIFIED)
        assert (each.spread is not None) == (each.check != "replay")
    assert found.exit_code == first.exit_code == (0 if margin == 0.2 else 3)


@pytest.mark.medium
def test_another_proposers_counts_are_not_used(tmp_path):
    path = suite_of(tmp_path)
    suite = load_suite(path)
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        run(prepare(suite), store, Quiet())
        told = history(store, suite.name, hardware())
    path.write_text(path.read_text().replace("kind: draft_model, model: draft, gamma: 3", "kind: ngram, gamma: 3"))
    assert {each.basis for each in plan(load_suite(path), told).checks} == {"defaults"}


@pytest.mark.parametrize(("margin", "record", "code"), [(0.5, "full", 0), (0.001, "full", 3), (0.5, "scalars", 3)])
def test_the_command_says_it_in_json_and_by_its_exit_code(tmp_path, margin, record, code):
    path = str(suite_of(tmp_path, samples=4, margin=margin, record=record))
    store = str(tmp_path / "none.db")
    done = invoke("plan", path, "--store", store, "--json")
    assert done.exit_code == code, done.output
    document = json.loads(done.stdout)
    Draft202012Validator(schemas.load("plan")).validate(document)
    assert document["exit_code"] == code
    table = invoke("plan", path, "--store", store)
    assert table.exit_code == code
    assert ("TOO LITTLE" in table.stdout) == (code == 3)
    assert not (tmp_path / "none.db").exists()


def test_a_policys_counts_are_foreseen(tmp_path):
    path, store = suite_of(tmp_path, samples=4, margin=0.5), str(tmp_path / "none.db")
    policy = tmp_path / "policy.yaml"
    for drafts, tokens, lacking in ((384, 1280, []), (385, 1281, ["arm chain: about 384 drafted tokens verified", ""])):
        least = {
            "workload": {"prompts": 8, "verified_drafts": drafts},
            "evidence": {"min_tokens": tokens, "max_age": "1d"},
        }
        require = [{"claim": "replay", "checks": ["replay"]}]
        policy.write_text(json.dumps({"version": 1, "name": "least", "require": require, **least}))
        done = invoke("plan", str(path), "--policy", str(policy), "--store", store, "--json")
        document = json.loads(done.stdout)
        Draft202012Validator(schemas.load("plan")).validate(document)
        assert done.exit_code == (3 if lacking else 0)
        assert all(told.startswith(known) for told, known in zip(document["lacks"], lacking, strict=True))
    told = invoke("plan", str(path), "--policy", str(policy), "--store", store).stdout
    assert "the policy could not decide: about 1280 emitted tokens of all candidates, 1281 are required" in told
    assert told.endswith("TOO LITTLE: the policy requires more\n")


def test_an_arm_of_which_nothing_runs_is_no_plan_for_a_pass(tmp_path):
    found = plan(load_suite(suite_of(tmp_path, record="tokens")), RunHistory())
    assert {each.outcome for each in found.checks} == {"not_run"}
    assert found.exit_code == 3


def test_a_bad_suite_is_one_line_and_exit_code_2(tmp_path):
    path = suite_of(tmp_path)
    path.write_text(path.read_text().replace("gamma: 3", "gamma: 0"))
    done = invoke("plan", str(path), "--store", str(tmp_path / "none.db"))
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.medium
def test_a_trial_gives_lengths_and_spreads_and_leaves_nothing(tmp_path):
    suite, store = suite_of(tmp_path, samples=6, margin=0.2), str(tmp_path / "audit.db")
    plain, tried = (
        json.loads(invoke("plan", str(suite), "--json", "--store", store, *more).stdout) for more in ((), ("--trial",))
    )
    assert plain["rate"] == RATE != tried["rate"]
    assert {check["basis"] for check in tried["checks"]} == {"a trial"}
    assert not (tmp_path / "audit.db").exists()
    # scripted requests have no end token, so that both know the lengths
    assert [load["tokens"] for load in tried["arms"]] == [load["tokens"] for load in plain["arms"]]
    results = tmp_path / "results.json"
    invoke("run", str(suite), "--store", store, "--results", str(results))
    assert misses(tried, json.loads(results.read_text())) == {}
