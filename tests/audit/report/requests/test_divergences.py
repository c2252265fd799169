"""Divergences on a page are those of the records, triaged as their numbers say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audit.evidence.records import Level
from audit.evidence.verdicts import CheckResult, Verdict
from audit.report.requests.choice import findings_by_request
from audit.report.requests.divergences import MOST, run_divergences
from audit.report.requests.pieces import Pieces
from audit.store import NewCheck, NewRequest, RunStatus
from tests.audit.store.build import erase_first, generation, start
from tests.audit.store.conftest import store

__all__ = ["store"]

LETTERS = Pieces("abcdefgh".__getitem__)
PLAN = ((0, 0),) * 6
BOUND = 0.8


def judged(store, count, *, check="greedy_equality", verdict=Verdict.FAULT):
    base, spec = start().arms
    run = store.begin_run(start(arms=(base, replace(spec, spec={"baseline": "base"}))))
    for index in range(count):
        for arm, seed in (("base", index), ("spec", index + ((index + 1) % 2) * 100)):
            store.add_requests(run, [NewRequest(arm, "chat", f"c{index}", 0, generation(PLAN, seed=seed))])
    details = {"divergences": {"real": 1}, "leads": [0.5], "noise_bound": BOUND, "noise_positions": 500}
    store.add_check(run, NewCheck("spec", check, "equality", Level.L1, CheckResult(verdict, "why", details=details)))
    store.finish_run(run, RunStatus.FINISHED, 1)
    return run


def read(store, run, pieces=LETTERS):
    stored, checks = store.load_run(run), store.checks(run)
    return run_divergences(store, stored, checks, pieces, findings_by_request(checks))


@pytest.mark.medium
def test_each_divergence_is_where_the_records_part_and_of_the_kind_that_its_lead_gives(store):
    run = judged(store, 8)
    (arm,) = read(store, run).arms
    ours, theirs = (store.load_arm(run, name).by_key() for name in ("spec", "base"))
    parted = {key for key in ours if ours[key].tokens != theirs[key].tokens}
    assert {one.request for one in arm.shown} == {f"spec/{key}" for key in parted}
    assert (arm.pairs.pairs, arm.choice.of, arm.leads, arm.counts) == (8, 4, (0.5,), {"real": 1})
    for one in arm.shown:
        key = one.request.removeprefix("spec/")
        left, right = ours[key], theirs[key]
        at = next(i for i, (a, b) in enumerate(zip(left.tokens, right.tokens, strict=True)) if a != b)
        row = right.trace.logits[at].astype(np.float64)
        lead = row[right.tokens[at]] - row[left.tokens[at]]
        assert (one.index, one.step, one.lead) == (at, at, lead)
        expected = "numerical" if -BOUND <= lead <= BOUND else "real" if lead > BOUND else "baseline"
        assert one.kind == ("baseline" if lead < 0 else expected)
        assert [side.token for side in one.sides] == [left.tokens[at], right.tokens[at]]
        assert [side.margin for side in one.sides] == [float(each.trace.margin[at]) for each in (left, right)]
        assert one.before == "".join("abcdefgh"[token] for token in left.tokens[:at])
        assert one.sides[0].after == "".join("abcdefgh"[token] for token in left.tokens[at + 1 :])


@pytest.mark.medium
def test_a_few_are_shown_and_the_rest_are_counted(store):
    (arm,) = read(store, judged(store, 2 * MOST + 4)).arms
    assert (len(arm.shown), arm.choice.left_out) == (MOST, 2)
    assert "are left out" in arm.choice.rule


@pytest.mark.medium
def test_erased_answers_are_counted_and_texts_may_be_unknown(store):
    run = judged(store, 4)
    erase_first(store.url)
    (arm,) = read(store, run, Pieces(None, "none")).arms
    assert (arm.pairs.erased, arm.choice.of) == (1, 1)
    (one,) = arm.shown
    assert [side.text for side in one.sides] == [f"[{side.token}]" for side in one.sides]


@pytest.mark.medium
def test_arms_without_an_equality_check_say_why(store):
    run = judged(store, 2, verdict=Verdict.NOT_RUN)
    assert read(store, run).silent == (("spec", "why"),)
    other = judged(store, 2, check="law")
    assert read(store, other).silent == (("spec", "no check compares its tokens with those of a baseline"),)
