"""Shards joined give the run of one process; what does not fit is refused before anything is stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from audit.api.running import Quiet
from audit.errors import UserError
from audit.executors import shares
from audit.executors.shares import divisible, parse_shard, share_of
from audit.runs.interruptions import Interrupted
from audit.runs.prepare import prepare
from audit.runs.runner import resume, run
from audit.runs.shard import Shard
from audit.store import RunStatus, Store
from audit.suite.loader import load_suite
from engine.record.effective import Effective
from tests.audit.executors.spread_suites import facts, local_run, newest, shard, spread_suite
from tests.audit.invoke import invoke
from tests.audit.store.bundle.build import edited
from tests.audit.store.conftest import any_url, cluster, postgres
from tests.support.observers import StopsAfter

__all__ = ["any_url", "cluster", "postgres"]
NATIVE = """
version: 1
name: native
seed: 5
batch_size: 3
models: {{target: {{source: 'bundled:target', numerics: {numerics}}}, draft: 'bundled:draft'}}
workloads: [{{name: chat, prompts: '{prompts}', limit: 8}}]
sampling: {{max_new_tokens: 16}}
coverage: {{least: 0}}
arms:
  - name: greedy
    proposer: {{kind: draft_model, model: draft, gamma: 3}}
    verifier: greedy
    sampling: {{temperature: 0}}
    checks: [greedy_equality, replay, bitwise]
  - name: chain
    proposer: {{kind: ngram, gamma: 3}}
    verifier: chain
    sampling: {{temperature: 1}}
    checks: [replay, anchor]
"""
PROMPTS = Path(__file__).parents[3] / "suites" / "prompts" / "chat.jsonl"
STANDARD = Path(__file__).parents[3] / "suites" / "policies" / "standard.yaml"


def bundles(suite, folder, of) -> list[Path]:
    """Every shard in a store of its own, exported."""
    return [exported_shard(suite, folder, f"{index}/{of}") for index in range(1, of + 1)]


def exported_shard(suite, folder, part) -> Path:
    stem = part.replace("/", "-of-")
    store, path = str(folder / f"{stem}.db"), folder / f"{stem}.zip"
    shard(suite, store, part)
    assert invoke("export", "latest", "--store", store, "--out", str(path)).exit_code == 0
    return path


def joined(folder, *shards, store=None):
    where = store or str(folder / "joined.db")
    listed = map(str, shards)
    return invoke("join", *listed, "--store", where, "--results", str(folder / "joined.json"))


@pytest.fixture
def suite(tmp_path):
    return spread_suite(tmp_path)


# the arms have four and eight requests
@pytest.mark.medium
@pytest.mark.parametrize(
    ("of", "batch"),
    [(3, 1), (2, 3), pytest.param(1, 1, marks=pytest.mark.slow), pytest.param(9, 1, marks=pytest.mark.slow)],
)
def test_joined_bundles_are_the_run_of_one_process(tmp_path, of, batch):
    suite, local = spread_suite(tmp_path, batch=batch), str(tmp_path / "local.db")
    parts = bundles(suite, tmp_path, of)
    expected = facts(local, local_run(suite, local))
    done = joined(tmp_path, *reversed(parts))
    assert done.exit_code == expected["exit"], done.stderr
    assert facts(str(tmp_path / "joined.db"), newest(str(tmp_path / "joined.db"))) == expected


def native_suite(folder, numerics):
    path = folder / "suite.yaml"
    path.write_text(NATIVE.format(numerics=numerics, prompts=PROMPTS))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("numerics", "apart"), [("fixed", 7), ("fast", 2)])
def test_the_bundled_pair_has_the_same_bits_in_shards(tmp_path, numerics, apart):
    suite, local = native_suite(tmp_path, numerics), str(tmp_path / "local.db")
    prepared = prepare(load_suite(suite))
    assert sum(divisible(prepared, arm) for arm in prepared.arms) == apart
    expected = facts(local, local_run(suite, local))
    done = joined(tmp_path, *bundles(suite, tmp_path, 3))
    assert done.exit_code == expected["exit"], done.stderr
    assert facts(str(tmp_path / "joined.db"), newest(str(tmp_path / "joined.db"))) == expected


@pytest.mark.slow
def test_an_arm_divided_without_a_promise_has_other_bits(tmp_path, monkeypatch):
    suite, local = native_suite(tmp_path, "fast"), str(tmp_path / "local.db")
    monkeypatch.setattr(shares, "starts_again", lambda _arm: False)
    whole = local_run(suite, local)
    joined(tmp_path, *bundles(suite, tmp_path, 3))
    found = str(tmp_path / "joined.db")
    assert facts(found, newest(found))["root"] != facts(local, whole)["root"]


@pytest.mark.medium
def test_shards_of_one_store_are_joined_there(suite, any_url, tmp_path):
    names = [shard(suite, any_url, f"{index}/2") for index in (2, 1)]
    expected = facts(any_url, local_run(suite, any_url))
    done = joined(tmp_path, *names, store=any_url)
    assert done.exit_code == expected["exit"], done.stderr
    assert facts(any_url, newest(any_url)) == expected


def test_the_shares_are_all_requests_once_and_an_arm_that_remembers_is_whole(suite):
    prepared = prepare(load_suite(suite))
    apart = {arm.planned.name: divisible(prepared, arm) for arm in prepared.arms}
    assert [name for name, each in apart.items() if not each] == ["gumbel"]
    shares = [share_of(prepared, Shard(index, 3)) for index in (1, 2, 3)]
    for place, arm in enumerate(prepared.arms):
        parts = [list(share.arms[place].requests) for share in shares]
        # in the order of the arm
        assert [key for part in parts for key in part] == list(arm.requests)
        sizes = sorted(len(part) for part in parts)
        assert (sizes[:2] == [0, 0]) if arm.planned.name == "gumbel" else sizes[2] - sizes[0] <= 1


def test_an_anchor_follows_its_candidate(suite):
    prepared = prepare(load_suite(suite))
    for index in (1, 2):
        arms = {arm.planned.name: arm for arm in share_of(prepared, Shard(index, 2)).arms}
        answered = {(key.case_id, key.sample) for key in arms["chain"].requests}
        assert {(key.case_id, key.sample) for key in arms["chain/anchor"].requests} == answered != set()


class Configured:
    def __init__(self, rows=1, promises="everywhere", memory=None, **facts):
        self.facts = {"rows": rows, "numerics": {"mode": "x", "promises": promises}, **facts}
        self._memory = memory

    def effective_config(self):
        return Effective.from_json(self.facts)

    def memory(self):
        return self._memory


@pytest.mark.parametrize(
    ("engine", "apart"),
    [
        (Configured(rows=8), True),
        (Configured(rows=8, promises="none"), False),
        (Configured(rows=1, promises="none"), True),
        (Configured(memory="abc"), False),
        (Configured(draft_version="abc"), False),
        # another engine, whose batches cannot be repeated, and one that replays an earlier run
        (Configured(requested={}, effective={}), False),
        (Configured(earlier={"run": "01A", "record_root": None}), False),
    ],
)
def test_an_arm_is_divided_only_if_its_requests_depend_on_themselves_alone(suite, engine, apart):
    prepared = prepare(load_suite(suite))
    arm = replace(next(arm for arm in prepared.arms if arm.planned.name == "chain"), engine=engine)
    assert divisible(prepared, arm) is apart


def test_an_arm_whose_time_is_measured_is_whole_and_so_is_its_baseline(suite):
    text = suite.read_text()
    at = text.index("  - name: chain")
    suite.write_text(text[:at] + text[at:].replace("[replay, anchor]", "[replay, performance]", 1))
    prepared = prepare(load_suite(suite))
    whole = {arm.planned.name for arm in prepared.arms if not divisible(prepared, arm)}
    assert whole == {"baseline/T=1", "chain", "gumbel"}


@pytest.mark.medium
def test_an_interrupted_shard_goes_on_as_a_shard(suite, tmp_path):
    store = str(tmp_path / "one.db")
    with Store.open(store, create=True) as opened, pytest.raises(Interrupted) as stopped:
        run(share_of(prepare(load_suite(suite)), Shard(1, 2)), opened, StopsAfter(5))
    name = stopped.value.run
    with Store.open(store, create=False) as opened, pytest.raises(UserError, match=r"began as shard 1/2"):
        resume(prepare(load_suite(suite)), opened, name, Quiet())
    assert joined(tmp_path, name, store=store).exit_code == 2
    assert invoke("resume", name, "--store", store).exit_code == 0
    second = shard(suite, store, "2/2")
    done = joined(tmp_path, name, second, store=store)
    assert facts(store, newest(store)) == facts(store, local_run(suite, store)), done.stderr


@pytest.mark.parametrize(
    "text", ["", "1", "0/3", "4/3", "1/0", "-1/2", "1/2/3", "a/b", "1 / 2", "1/99999", "٣/٤", "1.0/2"]
)
def test_a_bad_shard_is_one_line(text, suite, tmp_path):
    with pytest.raises(UserError, match="--shard"):
        parse_shard(text)
    done = invoke("run", str(suite), "--shard", text, "--store", str(tmp_path / "none.db"))
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--until", "decided", "--max-tokens", "9999"), "each round depends on"),
        (("--baseline", "latest"), "the earlier run is in one store"),
        (("--text", "off"), "cannot be spread"),
    ],
)
def test_what_cannot_be_spread_is_refused(options, word, suite, tmp_path):
    done = invoke("run", str(suite), "--shard", "1/2", *options, "--store", str(tmp_path / "none.db"))
    assert done.exit_code == 2
    assert word in done.stderr
    assert not (tmp_path / "none.db").exists()


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three")
    return bundles(spread_suite(folder), folder, 3)


def refused(folder, *shards, code=2):
    done = joined(folder, *shards)
    assert done.exit_code == code, done.stdout
    (line,) = done.stderr.splitlines()
    store = folder / "joined.db"
    if store.exists():
        with Store.open(str(store), create=False) as opened:
            assert opened.list_runs(9) == ()
    return line


@pytest.mark.medium
def test_missing_doubled_and_foreign_shards_are_refused(three, suite, tmp_path):
    assert "shard 2/3 is missing; name all 3 shards" in refused(tmp_path, three[0], three[2])
    assert "shard 1/3 is given twice" in refused(tmp_path, *three, three[0])
    (tmp_path / "other").mkdir()
    foreign = exported_shard(spread_suite(tmp_path / "other", seed=6), tmp_path / "other", "3/3")
    assert "is not the suite of" in refused(tmp_path, three[0], three[1], foreign)
    assert "does not fit" in refused(tmp_path, three[0], exported_shard(suite, tmp_path / "other", "2/2"))
    assert "absent.zip" in refused(tmp_path, tmp_path / "absent.zip")


@pytest.mark.slow
def test_a_whole_run_is_no_shard(suite, tmp_path):
    local, path = str(tmp_path / "local.db"), tmp_path / "whole.zip"
    local_run(suite, local)
    invoke("export", "latest", "--store", local, "--out", str(path))
    assert "is a whole run; make shards" in refused(tmp_path, path)


@pytest.mark.medium
def test_an_edited_shard_is_refused(three, tmp_path):
    def other_case(rows):
        rows[0]["latency_us"] += 1

    changed = edited(three[1], "request", other_case)
    assert "shard 2/3 has changed since it finished" in refused(tmp_path, three[0], changed, three[2], code=3)


@pytest.mark.medium
def test_another_environment_is_accepted_on_record_only(suite, tmp_path, monkeypatch):
    store, local = str(tmp_path / "all.db"), str(tmp_path / "local.db")
    root = facts(local, local_run(suite, local))["root"]
    first = shard(suite, store, "1/2")
    whole = prepare.__globals__["environment"]

    def elsewhere():
        from audit.evidence.environment import fingerprint

        here = whole()
        return fingerprint(here.packages, {**here.hardware, "cpu": "another"}, here.code)

    with monkeypatch.context() as patch:
        patch.setitem(prepare.__globals__, "environment", elsewhere)
        second = shard(suite, store, "2/2")
    done = joined(tmp_path, first, second, store=store)
    assert done.exit_code == 2
    assert "shard 2/2 ran in another environment" in done.stderr
    done = invoke("join", first, second, "--store", store, "--accept-changes", "--results", str(tmp_path / "j.json"))
    assert done.exit_code in (0, 3), done.stderr
    with Store.open(store, create=False) as opened:
        record = opened.load_run(newest(store))
        assert record.content_root == root
        assert any(event.detail.startswith("shard 2/2 ran elsewhere: cpu was") for event in record.events)


@pytest.mark.medium
def test_a_shard_is_neither_judged_nor_allowed(suite, tmp_path):
    store = str(tmp_path / "one.db")
    name = shard(suite, store, "1/2")
    with Store.open(store, create=False) as opened:
        assert opened.checks(name) == ()
        assert opened.run_status(name) is RunStatus.FINISHED
    done = invoke("judge", name, "--store", store)
    assert done.exit_code == 2
    assert "is shard 1/2, a part that no check reads" in done.stderr
    done = invoke("gate", name, "--policy", str(STANDARD), "--no-subject", "--store", store)
    assert done.exit_code == 3, done.stdout
    assert "is shard 1/2" in done.stdout + done.stderr
    assert invoke("show", name, "--store", store).exit_code == 0
