"""The order in which requests began: by the engine's rounds, by names where nobody says, and as they finished."""

from __future__ import annotations

import json

import numpy as np
import pytest

from audit.report.comparisons.begun_order import in_begun_order
from audit.stats.acceptance.instances import index_trend
from audit.store import Store
from tests.audit.invoke import invoke

pytestmark = pytest.mark.slow

SUITE = """
version: 1
name: order
backend: scripted
seed: 11
samples: 4
batch_size: 8
models: {target: "scripted:1", draft: "scripted:2"}
workloads: [{name: words, prompts: prompts.jsonl}, {name: again, prompts: prompts.jsonl}]
sampling: {max_new_tokens: 24, temperature: 1}
arms:
  - {name: drafted, proposer: {kind: draft_model, model: draft, gamma: 4}, verifier: chain, checks: [liveness]}
"""
WORKLOADS = ("words", "again")
ASKED = [(f"{name}/p{at}", sample) for name in WORKLOADS for at in range(6) for sample in range(4)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An arm's drafts as its requests finished, eight at a time, and its record."""
    folder = tmp_path_factory.mktemp("order")
    lines = [json.dumps({"id": f"p{at}", "prompt": chr(ord("a") + at) * 3}) for at in range(6)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    (folder / "suite.yaml").write_text(SUITE)
    store = folder / "audit.db"
    assert invoke("run", str(folder / "suite.yaml"), "--store", str(store)).exit_code in (0, 1, 3)
    with Store.open(str(store), create=False, read_only=True) as opened:
        run = opened.resolve("latest")
        yield opened.figures.drafts(run, "drafted").requests, opened.load_arm(run, "drafted")


def places(requests):
    return [(one.key.case_id, one.key.sample) for one in requests]


def test_the_rounds_of_admissions_give_the_order_in_which_requests_were_asked(finished):
    requests, record = finished
    assert places(requests) != ASKED
    order = in_begun_order(requests, record, 8, ())
    assert (places(order.requests), order.named) == (ASKED, False)


def test_requests_that_are_faster_finish_first_and_do_not_begin_first(finished):
    """A run without a trend would have one in the order in which it finished."""
    requests, record = finished
    begun = in_begun_order(requests, record, 8, ()).requests

    def p(ordered):
        accepted, drafted = (
            np.array([float(getattr(one, name)) for one in ordered]) for name in ("accepted", "drafted")
        )
        cases = [one.key.case_id for one in ordered]
        strata = np.array([cases.index(case) for case in cases])
        return index_trend(accepted, drafted, strata, strata, np.random.default_rng(0), replicates=999).p

    assert p(requests) < 0.005
    assert p(begun) > 0.05


def test_without_rounds_workloads_and_names_give_the_order(finished, monkeypatch):
    requests, record = finished
    monkeypatch.setattr("audit.report.comparisons.begun_order.stay_of", lambda request: None)
    order = in_begun_order(requests, record, 8, WORKLOADS)
    assert (places(order.requests), order.named) == (ASKED, True)


def test_one_at_a_time_begin_as_they_finish(finished):
    requests, record = finished
    assert in_begun_order(requests, record, 1, ()).requests == tuple(requests)
