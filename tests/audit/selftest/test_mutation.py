"""The mutation test: its ways of changing a quantity, and survivors where checks are taken away."""

import json
from dataclasses import replace

import numpy as np
import pytest

from audit.selftest import mutation, mutation_report
from audit.selftest.changes import COLUMN_WAYS, changed_columns, changed_documents
from audit.selftest.mutation import KINDS, MutatedArm, Mutation, mutate
from audit.selftest.mutation_report import failures, rows, survivors
from tests.audit.invoke import invoke

DOCUMENT = {"flag": True, "count": 3, "share": 0.5, "text": "abc", "list": [1, {"deep": "x"}], "none": None}


@pytest.mark.parametrize("dtype", ["f8", "i4", "u8", "u1"])
def test_every_way_changes_a_column(dtype):
    column, other = np.arange(1, 7).astype(dtype), np.arange(11, 14).astype(dtype)
    changed = dict(changed_columns(column, other, np.random.default_rng(1)))
    assert changed.keys() == COLUMN_WAYS.keys()
    assert all(not np.array_equal(value, column, equal_nan=dtype == "f8") for value in changed.values())
    assert np.array_equal(column, np.arange(1, 7).astype(dtype))


def test_a_column_without_entries_has_no_changes():
    assert list(changed_columns(np.empty(0), np.ones(3), np.random.default_rng(1))) == []


def test_each_document_has_one_change():
    changed = list(changed_documents(DOCUMENT, np.random.default_rng(2)))
    places = {item.place for item in changed}
    assert places >= {"flag", "count", "share", "text", "list", "list.[]", "none"}
    assert all(item.value != DOCUMENT or json.dumps(item.value) != json.dumps(DOCUMENT) for item in changed)
    for item in changed:
        top = item.place.partition(".")[0]
        assert {key: value for key, value in item.value.items() if key != top} == {
            key: value for key, value in DOCUMENT.items() if key != top
        }


@pytest.mark.medium
def test_a_sample_of_changes_is_noticed_or_explained():
    arm = mutate("n-gram", 0, 0.03)
    assert len(arm.mutations) > 10
    assert failures([arm]) == []
    assert any(change.noticed for change in arm.mutations)


@pytest.mark.medium
def test_changes_survive_without_the_checks_that_notice_them(monkeypatch):
    made = mutation._run

    def with_text_only(kind, seed):
        run = made(kind, seed)
        return replace(run, judging=replace(run.judging, checks={"text": {}}))

    monkeypatch.setattr(mutation, "_run", with_text_only)
    unexplained = failures([mutate("n-gram", 0, 0.05)])
    assert any(line.startswith(("p:", "logprob:", "uniform:", "logits:", "row:")) for line in unexplained)


ARMS = [
    MutatedArm("chain", 0, {}, (Mutation("draft_us", "zero"), Mutation("token", "zero", ("replay",)))),
    MutatedArm("tree", 0, {}, (Mutation("draft_us", "largest"), Mutation("token", "largest"))),
]


def test_survivors_are_grouped_by_quantity_and_those_without_a_reason_fail():
    times, token = survivors(ARMS)
    assert (times.quantity, times.ways, times.kinds) == ("draft_us", ("zero", "largest"), ("chain", "tree"))
    assert times.reason is not None
    assert token.reason is None
    assert failures(ARMS) == ["token: largest"]
    assert [row[-1] for row in rows(ARMS)] == [times.reason, mutation_report.UNEXPLAINED]
    assert "4 changes of 2 clean arms, 3 survive" in mutation_report.page(ARMS)


@pytest.mark.medium
def test_a_change_that_ends_the_judging_is_a_failure_and_the_others_are_judged(monkeypatch):
    judged = mutation._verdicts

    def fragile(run, change):
        if change.quantity.startswith("header: "):
            raise ZeroDivisionError("no row")
        return judged(run, change)

    monkeypatch.setattr(mutation, "_verdicts", fragile)
    arm = mutate("n-gram", 0, 0.03)
    errors = [change for change in arm.mutations if change.error]
    assert all(change.quantity.startswith("header: ") for change in errors)
    assert len(arm.mutations) > len(errors) > 0
    assert failures([arm]) == [
        f"{change.quantity}: {change.way} ends n-gram with ZeroDivisionError: no row" for change in errors
    ]


def test_every_kind_has_a_scenario_of_scripted_models():
    assert len(KINDS) == 10
    assert all(kind.scenario.models == "scripted" for kind in KINDS.values())


def test_two_tests_at_once_are_refused():
    result = invoke("selftest", "--mutate", "--default-suite")
    assert result.exit_code == 2
    assert "two tests" in result.stderr
