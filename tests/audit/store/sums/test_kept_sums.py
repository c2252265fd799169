"""The sums that a store keeps of a run are those of its rows, wherever the run came from, and a change is found."""

from __future__ import annotations

import hashlib

import pytest
from sqlalchemy import text

from audit.store import NewRequest, RunStatus, Store
from audit.store.base.values import RequestKey
from audit.store.sums import sums
from tests.audit.invoke import invoke
from tests.audit.store.build import connected, fill_finished, generation
from tests.audit.store.conftest import any_url, cluster, postgres
from tests.audit.store.owner import tamper
from tests.support.planned_runs import PLANS, filled

__all__ = ["any_url", "cluster", "postgres"]
CHANGED = "run: its kept sums are not those of its requests"


def finished(store: Store) -> str:
    """A finished run of planned records."""
    run = filled(store)
    store.finish_run(run, RunStatus.FINISHED, 0)
    return run


def kept(url: str) -> list[str]:
    with connected(url) as connection:
        return list(connection.execute(text("SELECT sums FROM run_sums ORDER BY run_id")).scalars())


@pytest.mark.medium
def test_a_run_has_the_same_sums_while_it_runs_and_after(any_url):
    with Store.open(any_url, create=False) as store:
        run = filled(store)
        before = store.figures.sums(run)
        assert kept(any_url) == []
        store.finish_run(run, RunStatus.FINISHED, 0)
        assert len(kept(any_url)) == 1
        assert store.figures.sums(run) == before
        assert store.figures.draft_sums(run) == before.drafts
        assert sum(one.steps for one in before.steps if one.arm == "spec") == sum(map(len, PLANS))
        assert store.damage() == ()


@pytest.mark.medium
def test_pages_read_the_kept_sums_and_the_check_makes_them_again(any_url):
    with Store.open(any_url, create=False) as store:
        run = finished(store)
    tamper(any_url, 'UPDATE run_sums SET sums = replace(sums, \'["spec","chat",\', \'["spec","else",\')')
    with Store.open(any_url, create=False) as store:
        assert "else" in {one.domain for one in store.figures.sums(run).domains}
        assert [f"{one.place.split()[-1]}: {one.message}" for one in store.damage()] == [CHANGED]


@pytest.mark.medium
def test_sums_of_another_form_are_not_read(any_url):
    with Store.open(any_url, create=False) as store:
        run = finished(store)
        known = store.figures.sums(run)
    for change in (
        "sums = '[]'",
        "sums = replace(sums, '\"drafts\":[[', '\"drafts\":[[[],')",
        "sums = replace(sums, '\"chat\",', '7,')",
        "format = 99",
    ):
        tamper(any_url, f"UPDATE run_sums SET {change}")
        with Store.open(any_url, create=False) as store:
            assert store.figures.sums(run) == known
            assert CHANGED in {f"{one.place.split()[-1]}: {one.message}" for one in store.damage()}


@pytest.mark.medium
def test_the_kept_drafts_are_those_of_the_steps(any_url):
    with Store.open(any_url, create=False) as store:
        run = finished(store)
        (found,) = store.figures.draft_sums(run)
        steps = [step for plan in PLANS for step in plan if step[0]]
        assert (found.arm, found.contradictions, found.sums.requests) == (
            "spec",
            (),
            sum(any(s[0] for s in p) for p in PLANS),
        )
        assert (found.sums.steps, found.sums.drafted, found.sums.accepted) == (
            len(steps),
            sum(many for many, _ in steps),
            sum(few for _, few in steps),
        )
        tamper(any_url, 'UPDATE run_sums SET sums = replace(sums, \'"drafts":[["spec",[\', \'"drafts":[["spec",[9\')')
    with Store.open(any_url, create=False) as store:
        assert store.figures.draft_sums(run) != (found,)
        assert [f"{one.place.split()[-1]}: {one.message}" for one in store.damage()] == [CHANGED]


@pytest.mark.medium
def test_an_import_makes_them_from_the_rows(tmp_path):
    url, other, bundle = (f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}", str(tmp_path / "run.zip"))
    with Store.open(url, create=True) as store:
        run = finished(store)
    assert invoke("export", run, "--store", url, "--out", bundle).exit_code == 0
    assert invoke("import", bundle, "--store", other).exit_code == 0
    assert kept(other) == kept(url)


@pytest.mark.medium
def test_a_sample_is_the_beginning_of_the_order_of_digests(any_url, monkeypatch):
    monkeypatch.setattr(sums, "SAMPLED", 3)
    with Store.open(any_url, create=False) as store:
        run = finished(store)
        names = sorted(
            (key.name for key in store.finished(run) if key.arm == "spec"),
            key=lambda name: hashlib.sha256(name.encode()).digest(),
        )
        for most, read in ((2, 3), (3, 3), (5, 5), (50, 11)):
            (sample,) = (one for one in store.figures.samples(run, most) if one.arm == "spec")
            assert [key.name for key in sample.keys] == names[:read]
            assert sample.requests == 11


@pytest.mark.medium
def test_keys_of_no_request_are_left_out(any_url):
    with Store.open(any_url, create=False) as store:
        run = finished(store)
        there = {RequestKey("spec", "c3", 1), RequestKey("base", "c0", 0)}
        absent = {RequestKey("spec", "c3", 9), RequestKey("none", "c0", 0)}
        assert store.figures.present(run, there | absent) == there


@pytest.mark.medium
def test_a_run_that_goes_on_leaves_no_sums_of_its_earlier_end(any_url):
    with Store.open(any_url, create=False) as store:
        run = fill_finished(store)
        store.set_status(run, RunStatus.RUNNING, "resumed")
        assert kept(any_url) == []
        store.add_requests(run, [NewRequest("spec", "chat", "late", 0, generation(((1, 0),)))])
        store.finish_run(run, RunStatus.FINISHED, 0)
        assert len(kept(any_url)) == 1
        assert store.damage() == ()
