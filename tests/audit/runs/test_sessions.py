"""Sessions: each turn is a request whose prompt goes on from the arm's own answer."""

from __future__ import annotations

import json

import pytest

from audit.api.running import Quiet
from audit.evidence.records import is_later_turn
from audit.evidence.verdicts import Verdict
from audit.runs.interruptions import Interrupted
from audit.runs.prepare import prepare
from audit.runs.runner import resume, run
from audit.store import Store
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke
from tests.support.observers import StopsAfter

ROWS = [
    {"id": "a", "prompt": "the sea", "turns": [" and", " or so"]},
    {"id": "b", "prompt": "a cat and a dog", "turns": [" go"]},
    {"id": "c", "prompt": "once"},
]
"""Sessions of three turns and of two, and one request."""
SUITE = {
    "version": 1,
    "name": "sessions",
    "backend": "scripted",
    "seed": 3,
    "batch_size": 2,
    "samples": 2,
    "models": {"target": "scripted:1", "draft": "scripted:2"},
    "workloads": [{"name": "w", "prompts": "prompts.jsonl"}],
    "sampling": {"max_new_tokens": 12},
    "coverage": {"directed": "off", "demand": ["later_turn"]},
    "arms": [
        {
            "name": "greedy",
            "proposer": {"kind": "draft_model", "model": "draft", "gamma": 3},
            "verifier": "greedy",
            "checks": ["greedy_equality", "replay", "bitwise", "liveness", "seed"],
        },
        {
            "name": "chain",
            "proposer": {"kind": "draft_model", "model": "draft", "gamma": 3},
            "verifier": "chain",
            "sampling": {"temperature": 1},
            "checks": ["replay", "bitwise", "two_sample", "accounting", "liveness"],
        },
    ],
}


@pytest.fixture
def file(tmp_path):
    def write(rows=ROWS, **more):
        (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        path = tmp_path / "suite.yaml"
        path.write_text(json.dumps({**SUITE, **more}))
        return path

    return write


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "audit.db"), create=True) as opened:
        yield opened


def finished(store, path):
    outcome = run(prepare(load_suite(path)), store, Quiet())
    return outcome, {arm.name: store.load_arm(outcome.run, arm.name) for arm in store.load_run(outcome.run).arms}


@pytest.mark.medium
def test_a_turn_goes_on_from_the_answer_that_the_same_arm_gave(store, file):
    outcome, arms = finished(store, file())
    for name in ("baseline/greedy", "baseline/T=1", "greedy", "chain"):
        turns = {(item.case_id, item.sample): item for item in arms[name].requests}
        samples = 1 if "greedy" in name else 2
        assert len(turns) == samples * (3 + 2 + 1), name
        for (case, sample), item in turns.items():
            before, mark, _digest = case.rpartition("~")
            if mark:
                earlier = turns[before, sample]
                asked = tuple(earlier.trace.header.prompt) + earlier.tokens
                assert item.trace.header.prompt[: len(asked)] == asked
    assert {item.key for item in arms["greedy"].requests} == {item.key for item in arms["baseline/greedy"].requests}
    assert {item.key for item in arms["chain"].requests} != {item.key for item in arms["baseline/T=1"].requests}
    # reading arms follow the later turns too, decoding companions the first ones
    assert {item.key for item in arms["chain/reread"].requests} == {item.key for item in arms["chain"].requests}
    assert not any(is_later_turn(item.case_id) for item in arms["greedy/repeat"].requests)
    assert {check.verdict for check in store.checks(outcome.run)}.isdisjoint({Verdict.FAULT, Verdict.NOT_RUN})
    greedy = {check.check: check for check in store.checks(outcome.run) if check.arm == "greedy"}
    assert greedy["bitwise"].details["unpaired"] == []
    counted = {row.situation: row.occurred for row in store.coverage(outcome.run) if row.arm == "greedy"}
    assert counted["later_turn"] == 3


@pytest.mark.medium
@pytest.mark.parametrize("after", [2, 5, 9, 20])
def test_a_stopped_run_goes_on_with_the_same_turns(store, file, after):
    path = file()
    whole, arms = finished(store, path)
    with pytest.raises(Interrupted) as stopped:
        run(prepare(load_suite(path)), store, StopsAfter(after))
    again = resume(prepare(load_suite(path)), store, stopped.value.run, Quiet())
    for name, arm in arms.items():
        other = store.load_arm(again.run, name)
        assert [(one.key, one.tokens) for one in other.requests] == [(one.key, one.tokens) for one in arm.requests]
    assert again.exit_code == whole.exit_code


@pytest.mark.medium
def test_a_fault_of_a_later_turn_shrinks_to_its_own_prompt(file, tmp_path):
    path, place = file(arms=[{**SUITE["arms"][0], "fault": "target_rows_shifted"}]), str(tmp_path / "audit.db")
    assert invoke("run", str(path), "--store", place).exit_code == 1
    with Store.open(place, create=False) as store:
        arm = store.load_arm(store.resolve("latest"), "greedy")
    later = next(item for item in arm.requests if is_later_turn(item.case_id))
    out = tmp_path / "small"
    done = invoke("minimize", "latest", f"greedy/{later.key}", "--out", str(out), "--store", place)
    assert done.exit_code == 0, done.stdout + done.stderr
    again = invoke("run", str(next(out.glob("*.yaml"))), "--store", place)
    assert again.exit_code == 1


@pytest.mark.medium
def test_a_plan_counts_the_turns_of_a_run(store, file, tmp_path):
    path = file()
    _outcome, arms = finished(store, path)
    planned = json.loads(invoke("plan", str(path), "--json", "--store", str(tmp_path / "other.db")).stdout)
    counts = {arm["arm"]: arm["requests"] for arm in planned["arms"]}
    assert counts == {name: len(arm.requests) for name, arm in arms.items()}
    assert "6 requests" in invoke("validate", str(path)).stdout


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"tokens": [1, 2], "turns": ["x"]}, "turns follow a text, and tokens have none; write messages or prompt"),
        ({"id": "a~0123abcd", "prompt": "abc"}, "ends as those of later turns do; give the row another one"),
        ({"prompt": "abc", "turns": []}, "turns"),
        ({"prompt": "abc", "turns": [1]}, "turns"),
        ({"prompt": "abc", "turns": ["x" * 5000]}, "its last turn: prompt of"),
    ],
)
def test_a_session_that_cannot_be_held_is_refused_before_the_run(file, tmp_path, row, told):
    done = invoke("run", str(file([row])), "--store", str(tmp_path / "none.db"))
    assert done.exit_code == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "none.db").exists()


def test_sessions_stay_in_one_process(file, tmp_path):
    done = invoke("run", str(file()), "--store", str(tmp_path / "none.db"), "--shard", "1/2")
    assert done.exit_code == 2
    assert "leave out --shard and --workers, or turns" in done.stderr
