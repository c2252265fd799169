"""The sums that the database makes equal those counted from the plans of the records."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from sqlalchemy.orm import Session

from audit.errors import UserError
from audit.store import NewRequest, RunStatus, Store
from audit.store.base.values import RequestKey
from audit.store.reading.figures import ArmPairs
from audit.store.sums.sums import RunSums
from audit.store.sums.sums import spans as spans_of
from tests.audit.store.build import connected, generation, start
from tests.audit.store.conftest import any_url, cluster, postgres
from tests.support.planned_runs import PLANS, filled

__all__ = ["any_url", "cluster", "postgres"]


def own(rows, arm="spec"):
    return [row for row in rows if row.arm == arm]


@pytest.mark.medium
def test_every_sum_is_that_of_the_plans(any_url):
    with Store.open(any_url, create=False) as store:
        run, other = filled(store), filled(store)
        figures, sums = store.figures, store.figures.sums(run)
        counted = Counter((drafted, kept, kept + 1) for plan in PLANS for drafted, kept in plan)
        steps = own(sums.steps)
        assert {(one.drafted, one.accepted, one.emitted): one.steps for one in steps} == counted
        assert sum(one.draft_us for one in steps) == sum(7 + drafted for plan in PLANS for drafted, _ in plan)
        assert sum(one.verify_us for one in steps) == 11 * sum(counted.values())
        for domain in own(sums.domains):
            plans = [plan for index, plan in enumerate(PLANS) if (index % 3 > 0) == (domain.domain == "code")]
            assert (domain.requests, domain.steps) == (len(plans), sum(map(len, plans)))
            assert (domain.drafted, domain.accepted) == tuple(
                sum(step[part] for plan in plans for step in plan) for part in (0, 1)
            )
        with connected(any_url) as connection, Session(connection) as session:
            spans = own(spans_of(session, run, 4))
        assert [(one.first, one.last) for one in spans] == [(1, 3), (4, 6), (7, 9), (10, 11)]
        assert [one.drafted for one in spans] == [
            sum(drafted for plan in PLANS[one.first - 1 : one.last] for drafted, _ in plan) for one in spans
        ]
        (latency,) = own(sums.latencies)
        times = sorted(1000 + index for index in range(11))
        assert (latency.p50, latency.p90, latency.p99, latency.longest) == (
            *(times[math.ceil(share * 11) - 1] for share in (0.5, 0.9, 0.99)),
            times[-1],
        )
        assert (latency.requests, latency.total_us) == (11, sum(times))
        assert latency.output == sum(kept + 1 for plan in PLANS for _, kept in plan)
        assert figures.pairs(run, "spec", "base") == ArmPairs(11, 0)
        assert figures.parted(run, "spec", "base") == tuple(
            RequestKey("spec", f"c{index // 2}", 0) for index in range(0, 11, 2)
        )
        assert figures.parted(other, "spec", "spec") == ()


def test_a_text_that_differs_parts_a_pair_of_equal_tokens(store):
    run = store.begin_run(start())
    for arm, text in (("base", "a"), ("spec", "b")):
        store.add_requests(run, [NewRequest(arm, "chat", "c", 0, generation(((2, 1),), text=text))])
    assert store.figures.parted(run, "spec", "base") == (RequestKey("spec", "c", 0),)


@pytest.mark.medium
def test_a_few_requests_are_read_without_the_others(store):
    run = filled(store)
    store.finish_run(run, RunStatus.FINISHED, 0)
    keys = [RequestKey("spec", "c3", 1), RequestKey("spec", "c0", 0), RequestKey("spec", "none", 0)]
    assert [one.key for one in store.load_arm(run, "spec", keys).requests] == ["c0#0", "c3#1"]
    assert not store.load_arm(run, "spec", []).requests
    assert len(store.load_arm(run, "spec").requests) == 11


def test_an_empty_arm_and_a_missing_run(store):
    run = store.begin_run(start())
    figures = store.figures
    assert (figures.sums(run), figures.pieces(run)) == (RunSums((), (), (), (), (), ()), {})
    with pytest.raises(UserError, match="no run"):
        figures.sums("NONE")
