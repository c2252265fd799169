"""No pass without coverage, as a user sees it: exit codes, words, tables."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.audit.invoke import invoke

SUITE = """\
version: 1
name: floors
backend: scripted
seed: 3
batch_size: {batch}
samples: {samples}
models: {{target: "scripted:1", draft: "scripted:2"}}
workloads: [{{name: chat, prompts: prompts.jsonl}}]
sampling: {{temperature: {temperature}, max_new_tokens: 24, ignore_eos: true}}
coverage: {{waive: [small_residual], directed: off}}
arms:
  - name: spec
    proposer: {{kind: draft_model, model: draft, gamma: {gamma}}}
    verifier: {rule}
{more}"""


@dataclass(frozen=True)
class Ran:
    exit_code: int
    output: str
    store: str

    def query(self, *arguments: str) -> str:
        return invoke(*arguments, "--store", self.store).stdout


def ran(folder: Path, more: str = "", prompts: int = 30, **changes: object) -> Ran:
    settings = {"batch": 4, "samples": 1, "temperature": 0.7, "gamma": 3, "rule": "chain", **changes}
    lines = "".join(f"    {line}\n" for line in more.splitlines())
    (folder / "suite.yaml").write_text(SUITE.format(more=lines, **settings))
    words = ("the sea", "a cat and a dog", "once", "no", "they say that it never rains", "ok then")
    listed = [{"id": f"p{i}", "prompt": words[i % 6] + "abcdefg"[i % 7]} for i in range(prompts)]
    listed[1:3] = [{"id": f"long{i}", "prompt": "it rains, and rains. " * 7 + "ab"[i]} for i in range(2)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in listed))
    store = str(folder / "audit.db")
    done = invoke("run", str(folder / "suite.yaml"), "-v", "--store", store, "--results", str(folder / "results.json"))
    return Ran(done.exit_code, done.stdout + done.stderr, store)


CHECKS = "checks: [accounting, replay]\n"


@pytest.fixture(scope="module")
def covered(tmp_path_factory) -> Ran:
    return ran(tmp_path_factory.mktemp("covered"), CHECKS)


@pytest.fixture(scope="module")
def lacking(tmp_path_factory) -> Ran:
    """A run whose record lacks what one of its checks needs."""
    return ran(tmp_path_factory.mktemp("lacking"), "record: tokens\nchecks: [accounting, law]\n", prompts=6)


def test_enough_of_every_situation_is_a_pass(covered):
    assert covered.exit_code == 0, covered.output
    assert "coverage of spec: " in covered.output
    assert "drafts kept whole" in covered.output


def test_coverage_is_a_table_by_situation_and_by_check(covered):
    table = covered.query("coverage", "latest", "--wide")
    assert table.splitlines()[0].split()[:5] == ["arm", "situation", "occurred", "floor", "examined"]
    assert "after_kept_whole" in table
    assert "tree_branch" not in table
    assert "tree_branch" in covered.query("coverage", "latest", "--all", "--wide")
    by_check = covered.query("coverage", "--by-check", "--wide")
    assert "accounting" in by_check
    assert "replay" in by_check


def test_coverage_is_in_results_views_and_named_queries(covered):
    found = json.loads((Path(covered.store).parent / "results.json").read_text())["coverage"]
    listed = json.loads(covered.query("coverage", "--json"))
    assert found == listed
    sql = "SELECT COUNT(*) AS n FROM v_coverage WHERE run = :run AND short = 0"
    counted = covered.query("query", "--sql", sql, "--param", "run=latest", "--format", "csv")
    assert counted.split() == ["n", str(len(listed))]
    assert len(covered.query("query", "coverage", "--format", "csv").splitlines()) == len(listed) + 1


@pytest.mark.medium
def test_too_few_requests_are_undecided_and_the_situation_is_named(tmp_path):
    few = ran(tmp_path, CHECKS, prompts=5)
    assert few.exit_code == 3
    assert re.search(r"row_reused [0-9] of 10", few.output)
    assert "add prompts or samples" in few.output
    assert "too few examined: " in few.output


@pytest.mark.medium
def test_a_suite_may_ask_for_less_and_waive(tmp_path):
    assert (
        ran(
            tmp_path, CHECKS + "coverage: {least: 1, waive: [small_residual, rows_finish_together]}\n", prompts=6
        ).exit_code
        == 0
    )
    assert (
        ran(
            tmp_path, CHECKS + "coverage: {waive: [row_reused, small_residual, rows_finish_together]}\n", prompts=6
        ).exit_code
        == 0
    )


@pytest.mark.medium
def test_a_suite_may_demand_a_situation_that_its_settings_do_not_promise(tmp_path):
    more = ran(tmp_path, CHECKS + "coverage: {demand: [end_in_draft]}\n")
    assert more.exit_code == 3
    assert "end_in_draft 0 of 10" in more.output


def test_an_unknown_situation_is_one_line(tmp_path):
    wrong = ran(tmp_path, "coverage: {waive: [row_resued]}\n")
    assert wrong.exit_code == 2
    assert 'suite.yaml:15: unknown situation "row_resued"; did you mean row_reused?' in wrong.output


@pytest.mark.medium
def test_an_arm_whose_speculation_accepted_nothing_certifies_nothing(tmp_path):
    more = "checks: [accounting]\ncoverage: {least: 0}\n"
    nothing = ran(tmp_path, more, rule="{kind: synthetic, length: 1}", prompts=6)
    assert nothing.exit_code == 3
    assert "no drafted token was accepted" in nothing.output


@pytest.mark.medium
def test_less_evidence_is_no_pass(tmp_path):
    """At `record: tokens` no default check sees what the rule accepts, so the arm must stay undecided."""
    less = ran(tmp_path, "record: tokens\nfault: accepts_everything\n", prompts=14)
    assert less.exit_code in (1, 3), less.output


def test_a_check_without_its_evidence_leaves_the_arm_undecided(lacking):
    assert lacking.exit_code == 3
    assert "needs evidence L3, the arm has L0" in lacking.output


@pytest.mark.medium
def test_a_check_without_a_claim_decides_nothing(tmp_path):
    greedy = ran(tmp_path, "checks: [greedy_equality, law]\n", temperature=0, gamma=2, rule="greedy")
    assert greedy.exit_code == 0, greedy.output
    assert "at temperature 0 there is no law to test" in greedy.output


@pytest.mark.medium
def test_an_undecided_run_says_what_to_type_next(tmp_path):
    few = ran(tmp_path, CHECKS, prompts=5)
    suite = tmp_path / "suite.yaml"
    assert f"\nnext: more samples: audit run {suite} --until decided --max-tokens " in few.output


def test_a_run_without_its_evidence_is_told_to_record_more(lacking):
    assert "\nnext: give the arms the evidence that is missing (often record: full)" in lacking.output


def test_a_decided_run_needs_no_next_step(covered):
    assert "\nnext: " not in covered.output


@pytest.mark.medium
def test_a_plan_predicts_what_the_last_run_examined_too_rarely(tmp_path):
    few = ran(tmp_path, CHECKS, prompts=5)
    planned = invoke("plan", str(tmp_path / "suite.yaml"), "--store", few.store, "--wide")
    assert planned.exit_code == 3
    assert re.search(r"row_reused about [0-9] of 10.*: .*add prompts or samples", planned.stdout)


def test_a_plan_counts_checks_that_will_lack_their_evidence(lacking):
    planned = invoke("plan", str(Path(lacking.store).parent / "suite.yaml"), "--store", lacking.store, "--wide")
    assert planned.exit_code == 3
    assert "1 would not run for want of evidence" in planned.stdout
