"""Drafts as a user of `audit run` sees them: the default checks show a stale, shifted or foreign draft, which keeps the
law and the text, and the table states which drafts depend on other requests.
"""

import re

import pytest

from audit.checks import load
from audit.evidence.records import ArmKind
from audit.runs.arms import REDRAFT_REQUESTS, plan_arms, slots, spread
from audit.runs.prepare import prepare
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke
from tests.support.planted_drafts import plant
from tests.support.tiers import slow_unless

SUITE = """\
version: 1
name: drafts
backend: scripted
seed: 11
batch_size: 4
models: {{target: "scripted:1", draft: "scripted:2"}}
workloads:
  - {{name: words, prompts: words.jsonl}}
sampling: {{max_new_tokens: 24, temperature: 1}}
coverage: {{least: 0}}
arms:
  - name: arm
    proposer: {proposer}
    verifier: {rule}
    {more}
"""
DRAFT = "{kind: draft_model, model: draft, gamma: 4}"
COPY = "{kind: ngram, gamma: 4, options: {min_ngram: 1}}"
LEARNED = "{kind: suffix, gamma: 4, options: {max_spec_factor: 4.0, cached_requests: 8}}"


def suite(folder, proposer, more="", prompts=16, rule="chain"):
    words = (f"{chr(97 + index % 26)}{chr(98 + index // 3)} word word" for index in range(prompts))
    lines = (f'{{"id": "p{index:03d}", "prompt": "{text}"}}' for index, text in enumerate(words))
    (folder / "words.jsonl").write_text("\n".join(lines) + "\n")
    path = folder / "suite.yaml"
    path.write_text(SUITE.format(proposer=proposer, more=more, rule=rule))
    return path


def run(folder, proposer, more="", store="audit.db", rule="chain"):
    return invoke("run", str(suite(folder, proposer, more, rule=rule)), "-v", "--store", str(folder / store))


def rows(result, *words):
    """The lines of the arm and its companions that have these words, in columns."""
    lines = (line for line in result.stdout.splitlines() if line.startswith("arm"))
    return [line for line in lines if "  ".join(words) in re.sub(r" {2,}", "  ", line)]


FAULTS = {
    "copies_from_previous_request": COPY,
    "draft_one_behind": DRAFT,
    "draft_vocabulary_shifted": DRAFT,
    "draft_rewound_too_far": DRAFT,
}


@pytest.mark.medium
@pytest.mark.parametrize("fault", slow_unless(FAULTS, ["copies_from_previous_request"]))
def test_a_draft_that_is_not_the_proposers_own_fails_a_run_without_a_checks_key(tmp_path, fault):
    result = run(tmp_path, FAULTS[fault], f"fault: {fault}")
    assert result.exit_code == 1
    (line,) = rows(result, "draft_anchor", "drafts", "fault")
    assert "not the proposer's own for this text; first in arm/words/p" in line
    assert rows(result, "redraft")


PAYING = "{kind: draft_model, model: draft, gamma: 4, options: {token_cost: 0.05}}"
GREEDY = "sampling: {temperature: 0}"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("fault", "proposer", "more"),
    [("blind_draft", DRAFT, ""), ("blind_draft", DRAFT, GREEDY), ("lengths_of_another_request", PAYING, "")],
    ids=["sampled", "greedy", "lengths"],
)
def test_a_draft_without_a_quarter_of_the_vocabulary_or_with_a_neighbours_length_fails_at_once(
    tmp_path, monkeypatch, fault, proposer, more
):
    plant(monkeypatch)
    rule = "\n    ".join(filter(None, (f"fault: {fault}", more)))
    result = run(tmp_path, proposer, rule, rule="greedy" if more else "chain")
    assert result.exit_code == 1, result.output
    (line,) = rows(result, "draft_anchor", "drafts", "fault")
    assert "are not the proposer's own for this text; first in arm/words/p" in line
    clean = run(tmp_path, proposer, more, "clean.db", "greedy" if more else "chain")
    assert rows(clean, "draft_anchor", "drafts", "certified"), clean.output


@pytest.mark.medium
def test_drafts_beyond_the_budget_are_a_fault_of_the_arm_and_not_the_end_of_the_run(tmp_path, monkeypatch):
    plant(monkeypatch)
    result = run(tmp_path, DRAFT, "fault: one_draft_too_many")
    assert result.exit_code == 1, result.output
    (line,) = rows(result, "draft_anchor", "drafts", "fault")
    assert "the record cannot be drafted again: request arm/redraft/words/p000#0: the proposer drafted 5 tokens" in line
    assert rows(result, "accounting", "accounting", "fault")
    assert rows(result, "law", "law", "inconclusive")


@pytest.mark.slow
def test_a_sound_copying_arm_is_certified_and_its_drafts_are_counted(tmp_path):
    (line,) = rows(run(tmp_path, COPY), "draft_anchor", "drafts", "certified")
    assert "of 16 requests drafted again, none differs" in line


@pytest.mark.medium
def test_drafts_that_depend_on_other_requests_are_stated_and_not_drafted_again(tmp_path):
    result = run(tmp_path, LEARNED)
    (line,) = rows(result, "draft_anchor", "drafts", "not_run")
    assert "the proposer declares that its drafts depend on other requests too" in line
    assert not rows(result, "redraft")
    plan = invoke("plan", str(tmp_path / "suite.yaml"), "--store", str(tmp_path / "other.db"))
    assert "depend on other requests too" in plan.stdout


def test_the_redraft_arm_drafts_with_the_candidates_settings_one_request_at_a_time(tmp_path):
    trial = load_suite(suite(tmp_path, DRAFT, "fault: draft_one_behind", prompts=40))
    planned = {arm.kind: arm for arm in plan_arms(trial)}
    candidate, again = planned[ArmKind.CANDIDATE], planned[ArmKind.REDRAFT]
    assert (again.plan.rows, again.plan.fault, again.plan.mixed) == (1, None, False)
    assert (again.plan.proposer, again.plan.gamma) == (candidate.plan.proposer, candidate.plan.gamma)
    assert (again.of, len(slots(trial, again))) == ("arm", REDRAFT_REQUESTS)
    assert len({slot.case.id for slot in slots(trial, again)}) == REDRAFT_REQUESTS
    assert ArmKind.REDRAFT in load("draft_anchor").companions
    assert [arm.planned.kind for arm in prepare(trial).arms].count(ArmKind.REDRAFT) == 1


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_the_requests_that_are_drafted_again_are_spread_over_the_arm_and_over_the_rows_of_its_batches(rows):
    chosen = spread(256, 32)
    assert [index // 8 for index in chosen] == list(range(32))
    assert len({index % rows for index in chosen}) == rows
    assert spread(5, 5) == list(range(5))
