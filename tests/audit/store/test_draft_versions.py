"""Which version drafted, in the store: columns, hashes, counts, and stores from before there were versions."""

from dataclasses import replace

import numpy as np
import pytest

from audit.store import NewRequest, RunStatus, Store
from engine.core.types import FinishReason
from engine.core.versions import after, first
from engine.record.recorder import Recorder
from engine.record.trace import decode
from tests.audit.invoke import invoke
from tests.audit.store.build import fill, fill_finished, generation, step
from tests.audit.store.conftest import any_url, cluster, postgres
from tests.support.stores import sql, tamper

__all__ = ["any_url", "cluster", "postgres"]

VERSIONS = (first("a"), after(first("a"), "b"))


def learnt(seed):
    """A generation of four steps, two by each version."""
    plain = generation((), seed=seed)
    rng, made = np.random.default_rng(seed), []
    for index in range(4):
        each = step(index, 3 + 2 * index, (1, 2, 3), 1, rng)
        made.append(replace(each, proposal=replace(each.proposal, version=VERSIONS[index // 2])))
    recorder = Recorder(decode(plain.trace).header)
    for each in made:
        recorder.step(each)
    tokens = tuple(emitted.token for each in made for emitted in each.verdict.emitted)
    return replace(plain, tokens=tokens, trace=recorder.finish(FinishReason.LENGTH))


def add_learnt(store):
    run = fill(store)
    store.add_requests(run, [NewRequest("spec", "chat", "case-c", 0, learnt(5))])
    store.finish_run(run, RunStatus.FINISHED, 0)
    return run


@pytest.fixture
def learning_url(tmp_path):
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    with Store.open(url, create=True) as store:
        add_learnt(store)
    return url


def test_a_trace_lists_the_versions_that_drafted():
    trace = decode(learnt(5).trace)
    assert trace.draft_version.tolist() == [0, 0, 1, 1]
    assert trace.header.draft_versions == VERSIONS


@pytest.mark.medium
def test_steps_keep_number_and_digest(learning_url):
    with Store.open(learning_url, create=False) as store:
        rows = sql(store, "SELECT draft_version, draft_sha256 FROM decode_step WHERE request_id = 5 ORDER BY step")
        assert rows == [(each.number, each.digest) for each in VERSIONS for _ in range(2)]
        others = sql(store, "SELECT DISTINCT draft_version, draft_sha256 FROM decode_step WHERE request_id < 5")
        assert others == [(None, None)]


CHANGES = ["steps = replace(steps, ',1],[', ',0],[')", "draft_versions = '{}'", "draft_versions = NULL"]


@pytest.mark.medium
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_version_breaks_the_root(learning_url, change):
    with Store.open(learning_url, create=False) as store:
        run = store.resolve("latest")
        assert store.verify_root(run)
        tamper(store, "request_steps", change, "request_id = 5")
        assert "spec/case-c#0" in {broken.place for broken in store.broken_places(run)}


@pytest.mark.medium
def test_show_and_query_name_the_versions(learning_url):
    lines = [line.split() for line in invoke("show", "--store", learning_url).stdout.splitlines()]
    ends = [f"{each.number} sha256:{each.digest[:12]}".split() for each in VERSIONS]
    assert ["spec", "2", "4", *ends[0], *ends[1]] in lines
    rows = invoke("query", "draft_versions", "--format", "csv", "--store", learning_url).stdout.split()
    assert rows[1:] == [f"spec,{each.number},{each.digest},1,2,6,2,{1 / 3}" for each in VERSIONS]


@pytest.mark.medium
def test_show_says_nothing_of_versions_where_no_draft_learns(tmp_path):
    url = f"sqlite:///{tmp_path / 'audit.db'}"
    with Store.open(url, create=True) as store:
        fill_finished(store)
    assert "drafts that learn" not in invoke("show", "--store", url).stdout
