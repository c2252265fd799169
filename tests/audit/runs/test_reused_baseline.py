"""Baselines of an earlier run: taken over whole, or refused in one line with nothing stored."""

import json
import shutil

import pytest

from audit.api.running import Quiet
from audit.evidence.verdicts import Verdict
from audit.runs.interruptions import Interrupted
from audit.runs.prepare import prepare
from audit.runs.reused_baseline import reused_run
from audit.runs.runner import run
from audit.store import Store
from audit.suite.loader import load_suite
from tests.audit.gate.attacks.honest import edited
from tests.audit.invoke import invoke
from tests.support.observers import StopsAfter
from tests.support.tiers import fast_first

SUITE = """
version: 1
name: two-days
backend: scripted
seed: 5
samples: 2
models: {target: 'scripted:1', draft: 'scripted:2'}
workloads: [{name: words, prompts: prompts.jsonl}]
sampling: {max_new_tokens: 24}
coverage: {directed: off}
arms:
  - name: greedy
    proposer: {kind: draft_model, model: draft, gamma: 3}
    verifier: greedy
    checks: [greedy_equality, replay, performance]
  - name: sampled
    proposer: {kind: draft_model, model: draft, gamma: 3}
    verifier: gumbel
    sampling: {temperature: 1.0}
    checks: [coupled_equality]
"""
PLAIN = ("baseline/greedy", "baseline/greedy/alone", "baseline/T=1", "baseline/T=1/alone")


# one process makes the earlier run
pytestmark = pytest.mark.xdist_group("earlier")


def write_suite(folder):
    prompts = [{"id": f"w{i}", "prompt": "abcdefgh"[i % 5 : i % 5 + 1 + i // 5]} for i in range(20)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (folder / "suite.yaml").write_text(SUITE)
    return folder / "suite.yaml"


@pytest.fixture
def unrun(tmp_path):
    """The suite, in a folder without a store."""
    return write_suite(tmp_path)


@pytest.fixture(scope="module")
def first_day(tmp_path_factory):
    """A folder with the suite and a store that holds one finished run of it."""
    folder = tmp_path_factory.mktemp("first_day")
    assert audit(write_suite(folder)).exit_code in (0, 3)
    return folder


@pytest.fixture
def path(first_day, tmp_path):
    """The suite in a copy of that folder."""
    shutil.copytree(first_day, tmp_path, dirs_exist_ok=True)
    return tmp_path / "suite.yaml"


@pytest.fixture
def store(path):
    with Store.open(str(path.parent / "audit.db"), create=False) as opened:
        yield opened


@pytest.fixture
def first(store):
    """The earlier run."""
    return store.resolve("latest")


def audit(path, *more):
    """`audit run` in the suite's folder."""
    store, results = path.parent / "audit.db", path.parent / "results.json"
    return invoke("run", str(path), "--store", str(store), "--results", str(results), *more)


def answers(store, name, arm):
    return [(each.key, each.tokens, each.text, each.latency_us) for each in store.load_arm(name, arm).requests]


def verdicts(store, name):
    return {(each.arm, each.check): each.verdict for each in store.checks(name)}


@pytest.mark.medium
def test_plain_arms_are_taken_over_with_their_origin(path, store, first):
    again = run(prepare(load_suite(path), reused_run(store, first)), store, Quiet()).run
    for arm in PLAIN:
        assert answers(store, again, arm) == answers(store, first, arm)
        found = store.load_arm(again, arm)
        assert found.taken_over
        assert found.effective.origin.run == first
        assert {each.trace.header.facts["earlier"] for each in found.requests} == {first}
    assert not store.load_arm(again, "greedy").taken_over
    assert store.verify_root(again)
    clock = ("greedy", "performance")
    assert verdicts(store, again)[clock] is Verdict.NOT_RUN
    before = {key: verdict for key, verdict in verdicts(store, first).items() if key != clock}
    assert before.items() <= verdicts(store, again).items()


@pytest.mark.slow
def test_a_candidate_that_changed_since_is_found(path, store, first):
    path.write_text(SUITE.replace("verifier: greedy\n", "verifier: greedy\n    fault: greedy_accepts_top2\n"))
    again = run(prepare(load_suite(path), reused_run(store, first)), store, Quiet())
    assert again.exit_code == 1
    assert verdicts(store, again.run)["greedy", "greedy_equality"] is Verdict.FAULT


@pytest.mark.slow
def test_no_token_is_decoded_for_them(path, store, first, monkeypatch):
    prepared = prepare(load_suite(path), reused_run(store, first))
    live = {arm.planned.name: arm.engine.live for arm in prepared.arms if arm.planned.name in PLAIN}
    assert sorted(live) == sorted(PLAIN)
    plain = type(live["baseline/greedy"])
    whole = plain.generate

    def only_candidates(self, requests):
        assert self not in live.values()
        return whole(self, requests)

    monkeypatch.setattr(plain, "generate", only_candidates)
    assert run(prepared, store, Quiet()).exit_code in (0, 3)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("change", "message"),
    fast_first(
        [
            (
                ("seed: 5", "seed: 6"),
                "recorded baseline/greedy/words/w0#0 with other sampling parameters or another seed",
            ),
            (("target: 'scripted:1'", "target: 'scripted:3'"), "its target differs from this suite's"),
            (("samples: 2", "samples: 3"), "has no request baseline/T=1/words/w0#2"),
            (("temperature: 1.0", "temperature: 0.5"), "has no plain arm baseline/T=0.5, it has baseline/greedy,"),
        ]
    ),
)
def test_what_the_earlier_run_lacks_is_one_line_and_nothing_is_stored(path, change, message):
    path.write_text(SUITE.replace(*change))
    done = audit(path, "--baseline", "latest")
    assert done.exit_code == 2
    assert message in done.stderr
    assert "run this suite first with speculation off, and name that run" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    with Store.open(str(path.parent / "audit.db"), create=False) as store:
        assert len(store.list_runs(10)) == 1


@pytest.mark.medium
def test_another_prompt_is_told(path):
    prompts = path.parent / "prompts.jsonl"
    prompts.write_text(prompts.read_text().replace("abcd", "abca"))
    done = audit(path, "--baseline", "latest")
    assert (done.exit_code, "recorded baseline/greedy/words/w15#0 with another prompt" in done.stderr) == (2, True)


@pytest.mark.medium
def test_a_run_that_is_not_finished_is_refused(path, store):
    with pytest.raises(Interrupted) as stopped:
        run(prepare(load_suite(path)), store, StopsAfter(3))
    done = audit(path, "--baseline", stopped.value.run)
    assert done.exit_code == 2
    assert f"is interrupted; finish it first: audit resume {stopped.value.run}" in done.stderr


@pytest.mark.medium
def test_a_run_that_was_changed_decides_nothing(path, first):
    edited(path.parent / "audit.db", "UPDATE request SET n_output = n_output + 1 WHERE id = 1")
    done = audit(path, "--baseline", first)
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)
    assert "the request's row, steps or trace digest were changed" in done.stderr
    advice = done.stderr.rstrip().rpartition("list every place: audit ")[2]
    check = invoke(*advice.split(), "--store", str(path.parent / "audit.db"))
    assert (check.exit_code, "were changed" in check.stdout) == (1, True)


def test_rounds_and_a_missing_store_are_refused(unrun):
    done = audit(unrun, "--baseline", "latest", "--until", "decided", "--max-tokens", "9000")
    assert (done.exit_code, "use one of them" in done.stderr) == (2, True)
    done = audit(unrun, "--baseline", "latest")
    assert (done.exit_code, "no such store" in done.stderr) == (2, True)
    assert not (unrun.parent / "audit.db").exists()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_same_baselines(path, store, first):
    with pytest.raises(Interrupted) as stopped:
        run(prepare(load_suite(path), reused_run(store, first)), store, StopsAfter(7))
    at = ("--store", str(path.parent / "audit.db"), "--results", str(path.parent / "results.json"))
    done = invoke("resume", stopped.value.run, *at)
    assert done.exit_code in (0, 3), done.stderr
    for arm in PLAIN:
        assert store.load_arm(stopped.value.run, arm).effective.origin.run == first
        assert answers(store, stopped.value.run, arm) == answers(store, first, arm)
