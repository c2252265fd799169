"""Runs, interruptions and resumption, on scripted models."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from audit.api.running import Quiet
from audit.errors import UserError
from audit.evidence.environment import fingerprint
from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.runs.arms import plan_arms
from audit.runs.interruptions import Interrupted
from audit.runs.prepare import prepare
from audit.runs.runner import resume, run
from audit.store import RunStatus, Store
from audit.suite.loader import load_suite
from audit.suite.spec import Suite
from engine.backends.native.scripted import ScriptedBackend
from tests.audit.invoke import invoke
from tests.audit.runs.scripted_suites import suite_file
from tests.support.observers import StopsAfter
from tests.support.tiers import fast_first


@pytest.fixture
def suite(tmp_path) -> Suite:
    return load_suite(suite_file(tmp_path))


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "audit.db"), create=True) as opened:
        yield opened


def test_arms_are_planned_with_baselines_and_noise_controls(suite):
    arms = {arm.name: arm for arm in plan_arms(suite)}
    assert list(arms) == [
        "baseline/greedy",
        "baseline/T=1",
        "baseline/greedy/alone",
        "baseline/T=1/alone",
        "greedy",
        "chain",
        "gumbel",
    ]
    assert arms["chain"].baseline == arms["gumbel"].baseline == "baseline/T=1"
    assert arms["baseline/greedy/alone"].plan.rows == 1
    assert arms["baseline/greedy/alone"].kind is ArmKind.CONTROL
    assert arms["greedy"].samples == 1
    assert arms["chain"].samples == 2


def anchored_suite(folder) -> Suite:
    path = suite_file(folder)
    path.write_text(path.read_text().replace("checks: [replay]\n", "checks: [replay, anchor]\n", 1))
    return load_suite(path)


@pytest.mark.medium
def test_an_anchor_arm_reads_what_its_candidate_emitted(tmp_path, store):
    outcome = run(prepare(anchored_suite(tmp_path)), store, Quiet())
    candidate, anchor = (store.load_arm(outcome.run, name) for name in ("chain", "chain/anchor"))
    assert anchor.kind is ArmKind.ANCHOR
    assert anchor.level == 2
    assert anchor.effective.facts["reference"]["code"] == "the script"
    assert {each.key: each.tokens for each in anchor.requests} == {each.key: each.tokens for each in candidate.requests}
    found = next(each for each in store.checks(outcome.run) if each.check == "anchor")
    assert found.effect < 1e-15
    assert found.n == 4


@pytest.mark.slow
def test_an_interrupted_anchor_arm_goes_on(tmp_path, store):
    suite = anchored_suite(tmp_path)
    whole = run(prepare(suite), store, Quiet()).run
    before = 4 * 2 + 8 * 2 + 4 + 8
    with pytest.raises(Interrupted) as stopped:
        run(prepare(suite), store, StopsAfter(before + 3))
    done = {key.arm for key in store.finished(stopped.value.run)}
    assert "chain/anchor" in done
    assert "gumbel" not in done
    resume(prepare(suite), store, stopped.value.run, Quiet())
    traces = [
        [each.trace.logits.tobytes() for each in store.load_arm(name, "chain/anchor").requests]
        for name in (whole, stopped.value.run)
    ]
    assert traces[0] == traces[1]


class Unanchored:
    """A backend without the optional pass."""

    def __init__(self, engine):
        self._backend = engine

    def __getattr__(self, name):
        if name.startswith("anchor"):
            raise AttributeError(name)
        return getattr(self._backend, name)


@pytest.mark.medium
def test_without_a_reference_pass_the_anchor_check_is_not_run(tmp_path, store, monkeypatch):
    whole = ScriptedBackend.arm
    monkeypatch.setattr(ScriptedBackend, "arm", lambda shop, plan: Unanchored(whole(shop, plan)))
    outcome = run(prepare(anchored_suite(tmp_path)), store, Quiet())
    assert "chain/anchor" not in {arm.name for arm in store.load_run(outcome.run).arms}
    found = next(each for each in store.checks(outcome.run) if each.check == "anchor")
    assert found.verdict is Verdict.NOT_RUN


@pytest.mark.medium
def test_a_run_stores_every_request_and_its_verdicts(suite, store):
    outcome = run(prepare(suite), store, Quiet())
    assert outcome.exit_code in (0, 3)
    record = store.load_run(outcome.run)
    assert record.status is RunStatus.FINISHED
    assert record.tokens == 12 * (4 * 3 + 8 * 4)
    assert {(each.arm, each.check) for each in store.checks(outcome.run)} == {
        ("greedy", "greedy_equality"),
        ("greedy", "replay"),
        ("chain", "replay"),
        ("gumbel", "replay"),
    }
    assert store.verify_root(outcome.run)


def tokens_of(store, run_id, arm):
    return {each.key: each.tokens for each in store.load_arm(run_id, arm).requests}


@pytest.mark.medium
@pytest.mark.parametrize("stop_after", fast_first([9, 1, 30]))
def test_an_interrupted_run_resumes_where_it_stopped(suite, store, stop_after):
    whole = run(prepare(suite), store, Quiet())
    with pytest.raises(Interrupted) as stopped:
        run(prepare(suite), store, StopsAfter(stop_after))
    name = stopped.value.run
    assert store.run_status(name) is RunStatus.INTERRUPTED
    assert len(store.finished(name)) == stop_after
    outcome = resume(prepare(suite), store, name, Quiet())
    assert outcome.exit_code == whole.exit_code
    assert store.load_run(name).status is RunStatus.FINISHED
    for arm in ("baseline/T=1", "greedy", "chain", "gumbel"):
        assert tokens_of(store, name, arm) == tokens_of(store, whole.run, arm)


@pytest.mark.medium
def test_a_finished_run_is_not_resumed(suite, store):
    outcome = run(prepare(suite), store, Quiet())
    with pytest.raises(UserError, match="is finished"):
        resume(prepare(suite), store, outcome.run, Quiet())


@pytest.mark.medium
def test_a_changed_suite_is_not_resumed(suite, store, tmp_path):
    with pytest.raises(Interrupted) as stopped:
        run(prepare(suite), store, StopsAfter(2))
    changed = load_suite(suite_file(tmp_path, gumbel_checks="replay, law"))
    with pytest.raises(UserError, match=r"suite .* has changed"):
        resume(prepare(changed), store, stopped.value.run, Quiet())


@pytest.mark.medium
def test_a_run_is_not_resumed_with_other_arithmetic(suite, store, monkeypatch):
    with pytest.raises(Interrupted) as stopped:
        run(prepare(suite), store, StopsAfter(2))
    elsewhere = prepare(suite)
    arm = elsewhere.arms[0]
    facts = arm.engine.effective_config().with_fact("numerics", {"mode": "fixed"})
    monkeypatch.setattr(type(arm.engine), "effective_config", lambda self: facts)
    message = r"arm baseline/greedy began with numerics scripted, here it would go on with fixed; resume where it began"
    with pytest.raises(UserError, match=message):
        resume(elsewhere, store, stopped.value.run, Quiet())


@pytest.mark.medium
def test_a_run_is_not_resumed_in_another_environment_unless_the_user_accepts_it(suite, store):
    with pytest.raises(Interrupted) as stopped:
        run(prepare(suite), store, StopsAfter(2))
    name, prepared = stopped.value.run, prepare(suite)
    here = prepared.environment
    other = fingerprint(
        {**here.packages, "torch": "1.0"},
        {**here.hardware, "torch_threads": 7},
        {"version": "9", "commit": "f" * 40, "dirty": "perhaps"},
    )
    moved = replace(prepared, environment=other)
    with pytest.raises(UserError, match=r"began in another environment: torch_threads was \d+, is 7; package"):
        resume(moved, store, name, Quiet())
    assert len(store.finished(name)) == 2
    assert store.run_status(name) is RunStatus.INTERRUPTED
    resume(moved, store, name, Quiet(), accept_changes=True)
    details = [event.detail for event in store.load_run(name).events]
    elsewhere = next(detail for detail in details if detail.startswith("resumed elsewhere: "))
    for change in ("torch_threads was", "package torch was", f"is {'f' * 40}", "code dirty was"):
        assert change in elsewhere


@pytest.mark.medium
def test_a_run_that_began_without_an_arm_is_not_resumed(suite, store):
    prepared = prepare(suite)
    with pytest.raises(Interrupted) as stopped:
        run(replace(prepared, arms=prepared.arms[:-1]), store, StopsAfter(2))
    name = stopped.value.run
    message = rf"run {name} began without arm {prepared.arms[-1].planned.name}, .*; start a new run, or resume with"
    with pytest.raises(UserError, match=message):
        resume(prepared, store, name, Quiet())
    assert store.run_status(name) is RunStatus.INTERRUPTED
    assert len(store.finished(name)) == 2


@pytest.mark.slow
def test_the_resume_command_finds_the_suite_again(suite, store, tmp_path):
    with pytest.raises(Interrupted) as stopped:
        run(prepare(suite), store, StopsAfter(5))
    done = invoke(
        "resume", stopped.value.run[:20], "--store", str(tmp_path / "audit.db"), "--results", str(tmp_path / "r.json")
    )
    assert done.exit_code in (0, 3), done.stderr
    assert stopped.value.run in done.stdout
    assert json.loads((tmp_path / "r.json").read_text())["run"]["status"] == "finished"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("max_new_tokens: 12", "max_new_tokens: 12, stop_token_ids: [99]"),
        ("max_new_tokens: 12", "max_new_tokens: 5000"),
    ],
)
def test_requests_that_cannot_be_served_are_refused_before_anything_is_stored(tmp_path, change, message):
    path = suite_file(tmp_path)
    path.write_text(path.read_text().replace(change, message))
    done = invoke("run", str(path), "--store", str(tmp_path / "new.db"))
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert str(path) in done.stderr
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("gamma: 3", "gamma: 0"),
        ("verifier: chain", "verifeir: chain"),
        ("temperature: 1", "temperature: .inf"),
        ("name: chain", "name: greedy"),
        ("samples: 2", "samples: [2"),
        ("prompts.jsonl", "missing.jsonl"),
    ],
)
def test_a_malformed_suite_is_one_line_and_leaves_no_store(tmp_path, before, after):
    path = suite_file(tmp_path)
    path.write_text(path.read_text().replace(before, after))
    done = invoke("run", str(path), "--store", str(tmp_path / "new.db"), "--results", str(tmp_path / "r.json"))
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert f"{path}:" in line
    assert not (tmp_path / "new.db").exists()
    assert not (tmp_path / "r.json").exists()


@pytest.mark.slow
def test_the_same_suite_gives_the_same_tokens(suite, store):
    first, second = (run(prepare(suite), store, Quiet()).run for _ in range(2))
    for arm in ("greedy", "chain", "gumbel"):
        assert tokens_of(store, first, arm) == tokens_of(store, second, arm)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_process_can_be_resumed(tmp_path, number):
    path = suite_file(tmp_path)
    path.write_text(path.read_text().replace("max_new_tokens: 12", "max_new_tokens: 400"))
    store = str(tmp_path / "audit.db")
    options = ["--store", store, "--results", str(tmp_path / "r.json")]
    # whoever was started in the background ignores the first of these, and so do its children
    reset = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{reset}; from audit.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "run", str(path), *options], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "running greedy" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number is not signal.SIGKILL:
        assert process.returncode == 3
        assert "audit resume" in errors
    resumed = invoke("resume", "latest", *options)
    assert resumed.exit_code in (0, 3), resumed.stderr
    assert "already done" in resumed.stderr


@pytest.mark.medium
def test_a_memory_of_finished_requests_is_in_the_record_where_it_begins_and_ends(tmp_path, store):
    path = suite_file(tmp_path)
    arm = "proposer: {kind: suffix, gamma: 2, options: {cached_requests: 4}}"
    path.write_text(path.read_text().replace("proposer: {kind: ngram, gamma: 2}", arm))
    prepared = prepare(load_suite(path))
    (remembering,) = [each for each in prepared.arms if each.planned.name == "gumbel"]
    empty = remembering.engine.memory()
    # what an earlier use of the backend left must not reach the run
    list(remembering.engine.generate(list(remembering.requests.values())[:2]))
    name = run(prepared, store, Quiet()).run
    record = store.load_run(name)
    details = [event.detail for event in record.events if "memory" in event.detail]
    assert details == [f"arm gumbel: memory of finished requests from {empty} to {remembering.engine.memory()}"]
    assert remembering.engine.memory() != empty
