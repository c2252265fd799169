"""Prompts that are token ids, and rows that name their repetitions: one request of a larger run, repeated exactly."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from audit.errors import UserError
from audit.runs.arms import plan_arms, slots
from audit.selftest.run_arm import gather
from audit.suite.loader import load_suite
from audit.suite.prompts import require_streams
from audit.suite.spec import Case
from tests.audit.invoke import invoke

SUITE = """\
version: 1
name: given
backend: scripted
seed: 5
samples: 4
models: {target: "scripted:1", draft: "scripted:2"}
workloads: [{name: w, prompts: rows.jsonl}]
sampling: {max_new_tokens: 12}
checks: {}
arms:
  - name: sampled
    proposer: {kind: draft_model, model: draft, gamma: 3}
    verifier: chain
    sampling: {temperature: 0.8}
    checks: [replay]
  - name: greedy
    proposer: {kind: draft_model, model: draft, gamma: 3}
    verifier: greedy
    checks: [replay]
"""


def loaded(folder, *rows, text=SUITE):
    (folder / "suite.yaml").write_text(text)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_suite(folder / "suite.yaml")


def candidate(suite):
    return {each.key: each for each in gather(replace(suite, arms=suite.arms[:1])).candidate.requests}


@pytest.mark.medium
def test_the_same_tokens_from_a_row_of_text_and_from_a_row_of_ids(tmp_path):
    whole = candidate(loaded(tmp_path, {"id": "a", "prompt": "abc"}, {"id": "b", "prompt": "hello"}))
    one = candidate(loaded(tmp_path, {"id": "b", "tokens": [7, 4, 11, 11, 14], "samples": [3]}))
    assert list(one) == ["w/b#3"]
    assert one["w/b#3"].trace.header.prompt == whole["w/b#3"].trace.header.prompt == (7, 4, 11, 11, 14)
    assert one["w/b#3"].tokens == whole["w/b#3"].tokens
    assert one["w/b#3"].tokens != whole["w/b#2"].tokens


def test_every_arm_runs_the_named_repetitions(tmp_path):
    suite = loaded(tmp_path, {"id": "a", "prompt": "abc", "samples": [5, 2]}, {"id": "b", "prompt": "x"})
    for arm in plan_arms(suite):
        own = [slot.sample for slot in slots(suite, arm) if slot.case.id == "w/a"]
        assert own == [5, 2], arm.name
    result = invoke("validate", str(tmp_path / "suite.yaml"))
    assert "6 requests" in result.stdout
    assert "3 requests" in result.stdout


def test_rounds_of_named_repetitions_share_none():
    case = Case("w/a", "w", "w", samples=(5, 2))
    rounds = [case.repetitions(1, earlier) for earlier in range(4)]
    assert rounds[0] == (5, 2)
    assert len({sample for each in rounds for sample in each}) == 8


def test_streams_of_named_repetitions_are_held_against_each_other(tmp_path):
    suite = loaded(tmp_path, {"id": "a", "prompt": "abc", "samples": [5]})
    with pytest.raises(UserError, match="w/a#5 and w/a#5"):
        require_streams(replace(suite, cases=suite.cases * 2))


def test_an_id_beyond_the_vocabulary_is_one_line(tmp_path):
    loaded(tmp_path, {"id": "a", "tokens": [1, 999]})
    result = invoke("run", str(tmp_path / "suite.yaml"), "--store", str(tmp_path / "audit.db"))
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "999" in result.stderr
    assert not (tmp_path / "audit.db").exists()


def test_a_backend_that_sends_text_takes_no_ids(tmp_path):
    text = SUITE.replace("backend: scripted", "backend: openai").replace("scripted:1", "served:a")
    text = text.replace("scripted:2", "served:b").replace("draft_model, model: draft", "served")
    with pytest.raises(UserError, match=r"suite\.yaml:7: backend openai takes text, case .w/a. has tokens"):
        loaded(tmp_path, {"id": "a", "tokens": [1]}, text=text)
