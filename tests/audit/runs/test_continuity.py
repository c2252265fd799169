"""A resumed run ends with the content root of a run that nothing interrupted, whatever its arms remember."""

from __future__ import annotations

from dataclasses import replace

import pytest

from audit.api.running import Quiet
from audit.errors import UserError
from audit.runs import continuity
from audit.runs.interruptions import Interrupted
from audit.runs.prepare import prepare
from audit.runs.runner import resume, run
from audit.store import RunStatus, Store
from audit.suite.loader import load_suite
from engine.record.effective import Effective
from tests.audit.runs.scripted_suites import suite_file
from tests.support.observers import StopsAfter

MEMORY = "proposer: {kind: suffix, gamma: 2, options: {cached_requests: 4}}"
REQUESTS = 4 * 3 + 8 * 4


@pytest.fixture
def suite(tmp_path):
    """The arm `gumbel`, the last one, remembers finished requests."""
    path = suite_file(tmp_path)
    path.write_text(path.read_text().replace("proposer: {kind: ngram, gamma: 2}", MEMORY))
    return load_suite(path)


def interrupted(suite, store, after):
    with pytest.raises(Interrupted) as stopped:
        run(prepare(suite), store, StopsAfter(after))
    return stopped.value.run


def root(store, name):
    return store.load_run(name).content_root


class Counts(Quiet):
    def __init__(self):
        self.stored = 0

    def advance(self, tokens):
        self.stored += 1


@pytest.mark.medium
def test_an_arm_that_remembers_is_decoded_again_and_nothing_is_stored_twice(suite, store, monkeypatch):
    whole = run(prepare(suite), store, Quiet()).run
    name, counts = interrupted(suite, store, REQUESTS - 5), Counts()
    resume(prepare(suite), store, name, counts)
    assert counts.stored == 5
    assert root(store, name) == root(store, whole) is not None
    # without it the content differs: the drafts come from other memories
    monkeypatch.setattr(continuity, "starts_again", lambda _arm: False)
    name = interrupted(suite, store, REQUESTS - 5)
    resume(prepare(suite), store, name, Quiet())
    assert root(store, name) != root(store, whole)


@pytest.mark.medium
def test_a_request_that_comes_out_differently_is_refused_in_one_line(suite, store, monkeypatch):
    name = interrupted(suite, store, REQUESTS - 5)
    prepared = prepare(suite)
    arm = prepared.arms[-1]
    whole = type(arm.engine).generate

    def other(engine, requests):
        for each in whole(engine, requests):
            yield replace(each, tokens=(*each.tokens[:3], 99)) if "gumbel/" in each.request.id else each

    monkeypatch.setattr(type(arm.engine), "generate", other)
    message = rf"run {name} failed: request gumbel/.*, decoded again to continue arm gumbel, differs from token 3 on"
    with pytest.raises(UserError, match=message):
        resume(prepared, store, name, Quiet())
    assert store.run_status(name) is RunStatus.FAILED


class Configured:
    def __init__(self, memory=None, **facts):
        self.facts, self._memory = {"rows": 4, "numerics": {"mode": "x", "promises": "none"}, **facts}, memory

    def effective_config(self):
        return Effective.from_json(self.facts)

    def memory(self):
        return self._memory


def numerics(promises):
    return {"mode": "x", "promises": promises}


@pytest.mark.parametrize(
    ("engine", "again"),
    [
        (Configured(), True),
        (Configured(rows=1), False),
        (Configured(numerics=numerics("chain")), False),
        (Configured(numerics=numerics("chain"), proposer_shape="tree"), True),
        (Configured(numerics=numerics("tree"), proposer_shape="tree"), False),
        (Configured(numerics=numerics("everywhere"), memory="abc"), True),
        (Configured(numerics=numerics("everywhere"), draft_version="abc"), True),
        (Configured(requested={}, effective={}), False),
        (Configured(earlier={"run": "01A", "record_root": None}), False),
    ],
)
def test_an_arm_starts_again_where_its_requests_depend_on_more_than_themselves(suite, engine, again):
    arm = replace(prepare(suite).arms[-1], engine=engine)
    assert continuity.starts_again(arm) is again


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "audit.db"), create=True) as opened:
        yield opened
