"""Directed requests: situations come about by themselves, and no test of the workload counts them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from audit.api.running import Quiet
from audit.checks import load
from audit.errors import UserError
from audit.evidence.records import is_directed
from audit.evidence.verdicts import Verdict
from audit.report.tables.acceptance import run_estimates
from audit.runs.interruptions import Interrupted
from audit.runs.prepare import prepare
from audit.runs.rejudge import judge_again
from audit.runs.reused_baseline import reused_run
from audit.runs.runner import resume, run
from audit.runs.situations.generators import GENERATORS
from audit.runs.situations.rounds import SHARES
from audit.store import Store
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke
from tests.support.observers import StopsAfter

pytestmark = pytest.mark.medium
SUITE = """\
version: 1
name: few
backend: scripted
seed: 3
batch_size: 3
models: {{target: "scripted:1", draft: "scripted:2"}}
workloads: [{{name: {workload}, prompts: prompts.jsonl}}]
sampling: {{max_new_tokens: 40, stop_token_ids: [25]}}
coverage: {{directed: {directed}, waive: [small_residual, near_tie]}}
arms:
  - name: greedy
    proposer: {{kind: draft_model, model: draft, gamma: 3}}
    verifier: greedy
    {fault}
  - name: chain
    proposer: {{kind: draft_model, model: draft, gamma: 3}}
    verifier: chain
    sampling: {{temperature: 0.8}}
"""
PROMPTS = (
    "the sea",
    "a cat and a dog",
    "once",
    "no",
    "they say that it never rains",
    "ok then",
    "abc",
    "a long day",
    "we",
    "all of them",
)


def suite_file(folder: Path, directed: str = "on", fault: str | None = None, workload: str = "chat") -> Path:
    path = folder / "suite.yaml"
    broken = "" if fault is None else f"fault: {fault}"
    path.write_text(SUITE.format(directed=directed, fault=broken, workload=workload))
    rows = [{"id": f"p{index}", "prompt": prompt} for index, prompt in enumerate(PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Ran:
    """A finished run in a store of its own."""

    def __init__(self, folder: Path, directed: str, fault: str | None = None) -> None:
        self.store = Store.open(str(folder / "audit.db"), create=True)
        outcome = run(prepare(load_suite(suite_file(folder, directed, fault))), self.store, Quiet())
        self.name, self.code = outcome.run, outcome.exit_code

    def checks(self):
        return {(check.arm, check.check): check for check in self.store.checks(self.name)}

    def requests(self, arm):
        return list(self.store.load_arm(self.name, arm).requests)

    def content(self):
        return [
            (arm.name, request.key, request.tokens, request.trace.header.sampling, request.trace.header.stream)
            for arm in self.store.load_run(self.name).arms
            for request in self.requests(arm.name)
        ]


@pytest.fixture(scope="module")
def on(tmp_path_factory):
    return Ran(tmp_path_factory.mktemp("on"), "on")


@pytest.fixture(scope="module")
def off(tmp_path_factory):
    return Ran(tmp_path_factory.mktemp("off"), "off")


def short(ran, arm):
    return {item.situation for item in ran.store.coverage(ran.name) if item.arm == arm and item.short}


@pytest.mark.parametrize("arm", ["greedy", "chain"])
def test_what_the_workload_lacks_comes_about(on, off, arm):
    assert {"end_in_draft", "rows_finish_together", "long_prompt", "row_reused"} & short(off, arm)
    assert not short(on, arm)
    undecided = {
        name for (of, name), check in on.checks().items() if of == arm and check.verdict is Verdict.INCONCLUSIVE
    }
    # these want more tokens of the workload
    assert all(load(name).statistical for name in undecided), undecided


def test_an_arm_at_temperature_0_is_decided_in_its_first_run(on, off):
    for ran, certified in ((on, True), (off, False)):
        verdicts = {check.verdict for (arm, _), check in ran.checks().items() if arm == "greedy"}
        assert (Verdict.INCONCLUSIVE not in verdicts) is certified


def test_tests_of_the_workload_do_not_count_them(on, off):
    """Bit for bit the results of the same run without directed requests, but for what coverage held back."""
    compared = 0
    for key, check in on.checks().items():
        if load(check.check).statistical and check.verdict is not Verdict.NOT_RUN:
            other = off.checks()[key]
            assert (check.n, check.statistic, check.p_value, check.effect, check.bound) == (
                *(other.n, other.statistic, other.p_value, other.effect),
                other.bound,
            )
            compared += 1
    assert compared >= 3


def test_exact_checks_judge_them(on, off):
    for arm in ("greedy", "chain"):
        assert on.checks()[arm, "replay"].n > off.checks()[arm, "replay"].n


def test_the_suites_own_requests_are_those_of_a_run_without(on, off):
    own = [item for item in on.content() if not is_directed(item[1])]
    assert own == off.content()


def test_no_figure_counts_them(on, off):
    """Sums, acceptance and its estimates are those of a run without directed requests, but for times."""
    arms = [{arm.name: arm for arm in ran.store.load_run(ran.name).candidates} for ran in (on, off)]
    for name in arms[1]:
        counts = [replace(run[name].counts, directed=0, directed_output=0, latency_us=0) for run in arms]
        assert counts[0] == counts[1]
        assert arms[0][name].counts.directed > 0
    estimates = [run_estimates(ran.store, ran.store.load_run(ran.name)) for ran in (on, off)]
    assert estimates[0] == estimates[1] != ()
    sums = [ran.store.figures.sums(ran.name) for ran in (on, off)]
    for part in ("domains", "spans"):
        assert [one for one in getattr(sums[0], part) if one.arm in arms[1]] == [
            one for one in getattr(sums[1], part) if one.arm in arms[1]
        ]
    steps, requests = (
        [[replace(one, draft_us=0, verify_us=0) for one in each.steps if one.arm in arms[1]] for each in sums],
        [[one.requests for one in each.latencies if one.arm in arms[1]] for each in sums],
    )
    assert steps[0] == steps[1]
    assert requests[0] == requests[1]


def test_a_workload_of_a_similar_name_counts(tmp_path):
    """SQLite's LIKE ignores case."""
    path = suite_file(tmp_path, directed="off", workload="Directed")
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        name = run(prepare(load_suite(path)), store, Quiet()).run
        counts = {arm.name: arm.counts for arm in store.load_run(name).candidates}
        domains = {one.arm: one.requests for one in store.figures.sums(name).domains}
    assert {arm: (one.requests, one.directed) for arm, one in counts.items()} == dict.fromkeys(counts, (10, 0))
    assert {arm: domains[arm] for arm in counts} == dict.fromkeys(counts, 10)


def test_they_are_named_and_bounded(on):
    for arm in ("greedy", "chain"):
        listed = on.requests(arm)
        directed = [request for request in listed if request.directed]
        assert {request.domain for request in directed} == {"directed"}
        own = [arm.counts.output for arm in on.store.load_run(on.name).candidates]
        assert 0 < sum(len(request.tokens) for request in directed) <= 1.1 * SHARES[-1] * sum(own) / len(own)
        kinds = {request.case_id.split("/")[3] for request in directed}
        assert kinds <= {generator.name for generator in GENERATORS}


def test_each_has_a_partner_in_the_plain_arm_and_a_second_reading(on):
    chain = {request.key for request in on.requests("chain") if request.directed}
    for other in ("baseline/T=0.8", "chain/reread", "chain/redraft"):
        assert {request.key for request in on.requests(other) if request.directed} == chain


def test_a_run_that_was_interrupted_adds_the_same(on, tmp_path):
    suite = load_suite(suite_file(tmp_path))
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        own = sum(not is_directed(item[1]) for item in on.content())
        with pytest.raises(Interrupted):
            run(prepare(suite), store, StopsAfter(own + 7))
        for stored in (9, 15):
            with pytest.raises(Interrupted):
                resume(prepare(suite), store, store.resolve("latest"), StopsAfter(stored))
        outcome = resume(prepare(suite), store, store.resolve("latest"), Quiet())
        again = object.__new__(Ran)
        again.store, again.name = store, outcome.run
        assert again.content() == on.content()
        assert outcome.exit_code == on.code


def test_a_run_is_judged_again_from_its_record(on):
    assert judge_again(on.store, on.name, lambda _arm: None).differences == ()


@pytest.mark.parametrize("fault", ["rows_shifted_after_finish", "drafted_end_ignored", "bonus_end_ignored"])
def test_faults_are_no_pass(tmp_path, fault):
    assert Ran(tmp_path, "on", fault).code == 1


def test_no_workload_may_have_their_name(tmp_path):
    with pytest.raises(UserError, match=r"suite.yaml:7: the name directed is that of the requests that a run adds"):
        load_suite(suite_file(tmp_path, workload="directed"))


def test_a_run_until_decided_adds_them_in_its_first_round(tmp_path):
    path = suite_file(tmp_path)
    store = str(tmp_path / "audit.db")
    done = invoke("run", str(path), "--store", store, "--until", "decided", "--max-tokens", "60000")
    assert done.exit_code == 0, done.stdout
    with Store.open(store, create=False) as opened:
        listed = opened.load_arm(opened.resolve("latest"), "chain").requests
        samples = {request.sample for request in listed if request.directed}
        assert samples == {0}


def test_the_rule_is_on_record(on):
    arm = next(arm for arm in on.store.load_run(on.name).arms if arm.name == "chain")
    assert arm.spec["judged"]["coverage"]["directed"] is True


def test_a_fault_of_one_is_minimized_to_a_case_of_its_own(tmp_path):
    broken = Ran(tmp_path, "on", "drafted_end_ignored")
    named = [finding.request for finding in broken.checks()["greedy", "accounting"].findings]
    directed = next(name for name in named if "/directed/" in name)
    store, out = str(tmp_path / "audit.db"), tmp_path / "small"
    broken.store.close()
    done = invoke("minimize", broken.name, directed, "--store", store, "--out", str(out))
    assert "reproduces 2 of 2 times" in done.stdout
    again = invoke("run", str(out / "suite.yaml"), "--store", str(tmp_path / "again.db"))
    assert again.exit_code == 1, again.stdout


def test_the_name_of_a_workload_changes_no_verdict(on, tmp_path):
    """Names behind "directed" sort after it, and an arm's first request states what its neighbours contrast with."""
    path = suite_file(tmp_path, workload="zoo")
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        outcome = run(prepare(load_suite(path)), store, Quiet())
        requests = store.load_arm(outcome.run, "greedy").requests
        checks = {(check.arm, check.check): check.verdict for check in store.checks(outcome.run)}
    assert [request.directed for request in requests] == sorted(request.directed for request in requests)
    assert any(request.directed for request in requests)
    assert outcome.exit_code == on.code
    assert checks == {key: check.verdict for key, check in on.checks().items()}


def test_with_an_earlier_baseline_none_are_added(tmp_path):
    suite = load_suite(suite_file(tmp_path))
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        first = run(prepare(suite), store, Quiet()).run
        second = run(prepare(suite, reused_run(store, first)), store, Quiet()).run
        arms = {name: store.load_arm(name, "greedy").requests for name in (first, second)}
        directed = {name: sum(request.directed for request in requests) for name, requests in arms.items()}
    assert directed[first] > 0 == directed[second]


def test_a_prompt_that_was_made_too_long_is_left_out(tmp_path):
    """The scripted models have no limit of context, the bundled ones have 512 positions."""
    path = suite_file(tmp_path)
    text = path.read_text().replace("backend: scripted\n", "batch_size: 2\n").replace("batch_size: 3\n", "")
    text = text.replace('"scripted:1"', "bundled:target").replace('"scripted:2"', "bundled:draft")
    path.write_text(text.replace("stop_token_ids: [25]", "stop_token_ids: []"))
    rows = [{"id": f"p{index}", "prompt": "the sea and the sun " * 45} for index in range(3)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        name = run(prepare(load_suite(path)), store, Quiet()).run
        requests = list(store.load_arm(name, "greedy").requests)
    assert any(request.directed for request in requests)
    assert all(len(request.trace.header.prompt) + 40 <= 512 for request in requests)
