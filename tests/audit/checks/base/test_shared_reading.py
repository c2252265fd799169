"""Checks that share a reading give the results of each alone, and an arm's traces are decoded once."""

import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.checks.base.shared_reading import AskedCheck, evaluate_together
from audit.checks.battery import CLAIMS
from audit.evidence.records import Evidence
from audit.stats import spooled
from engine.core.types import Protocol, RecordLevel
from engine.record import trace as lazy_traces
from engine.record.trace import COLUMNS, decode, encode
from tests.audit.checks.lazy_arms import lazily
from tests.audit.checks.simulator import GREEDY, SAMPLED, Setup, arm, changed, put, world

SHORT = replace(SAMPLED, max_new_tokens=40)
SETUPS = {
    "chain, cells": Setup(level=RecordLevel.TOPK, sampling=SHORT),
    "chain, rows": Setup(sampling=SHORT),
    "deterministic draft": Setup(draft="one_hot", level=RecordLevel.TOPK, sampling=SHORT),
    "coupled draft": Setup(Protocol.GUMBEL, "coupled", level=RecordLevel.TOPK, sampling=SHORT),
    "greedy": Setup(Protocol.GREEDY, "one_hot", level=RecordLevel.TOPK, sampling=GREEDY),
    "tokens alone": Setup(level=RecordLevel.TOKENS, sampling=SHORT),
    "argmax of the draft": Setup(fault="argmax_draft", level=RecordLevel.TOPK, sampling=SHORT),
    "recovered from p": Setup(fault="from_p", sampling=SHORT),
}


def clean():
    return arm(world(3), SETUPS["chain, cells"], 6)


def one_misshapen():
    arm = clean()
    return changed(arm, 4, node_parent=put(arm.requests[4].trace.node_parent, 0, 0))


def one_without_a_number():
    arm = clean()
    return changed(arm, 2, cell_p=put(arm.requests[2].trace.cell_p, 0, np.nan))


def one_of_another_q():
    arm = clean()
    return changed(arm, 1, examined_q=put(arm.requests[1].trace.examined_q, 3, 0.4))


def one_request_twice():
    arm = clean()
    return replace(arm, requests=(*arm.requests, arm.requests[0]))


ARMS = {
    **{name: partial(arm, world(3), setup, 6) for name, setup in SETUPS.items()},
    "misshapen": one_misshapen,
    "without a number": one_without_a_number,
    "other q": one_of_another_q,
    "one request twice": one_request_twice,
}


@pytest.mark.medium
@pytest.mark.parametrize("name", ARMS)
def test_checks_that_share_a_reading_give_the_results_of_each_alone(name):
    evidence = Evidence(lazily(ARMS[name]()))
    together = dict(evaluate_together({name: AskedCheck(load(name), {}) for name in CLAIMS}, evidence))
    assert list(together) == list(CLAIMS)
    for check, result in together.items():
        assert result == evaluate(load(check), evidence, {}), check


@pytest.mark.medium
def test_columns_on_disk_give_the_same_results(monkeypatch):
    evidence = Evidence(lazily(arm(world(3), SETUPS["chain, cells"], 30)))
    names = ("law", "acceptance_theory")
    expected = [evaluate(load(name), evidence, {}) for name in names]
    monkeypatch.setattr(spooled, "IN_MEMORY", 512)
    monkeypatch.setattr(spooled, "ROWS", 256)
    assert [evaluate(load(name), evidence, {}) for name in names] == expected


@pytest.mark.medium
def test_parameters_reach_the_checks_and_an_arm_without_requests_is_judged():
    evidence = Evidence(lazily(arm(world(3), SETUPS["chain, cells"], 6)))
    asked = {"law": AskedCheck(load("law"), {"leak_margin": 1.0, "min_tokens": 1})}
    assert dict(evaluate_together(asked, evidence))["law"].margin == 1.0
    empty = Evidence(replace(evidence.candidate, requests=()))
    for name in ("accounting", "replay", "law", "q_contract", "acceptance_theory"):
        (result,) = (found for _, found in evaluate_together({name: AskedCheck(load(name), {})}, empty))
        assert result == evaluate(load(name), empty, {})


@pytest.mark.medium
def test_a_trace_is_decoded_once_for_all_checks_that_read_by_request(monkeypatch):
    decoded = []
    monkeypatch.setattr(lazy_traces, "decode", lambda data: decoded.append(data) or decode(data))
    evidence = Evidence(lazily(arm(world(3), SETUPS["chain, cells"], 6)))
    names = ("accounting", "replay", "law", "acceptance_theory")
    dict(evaluate_together({name: AskedCheck(load(name), {}) for name in names}, evidence))
    assert len(decoded) == 6


def test_a_request_that_is_read_later_travels_as_bytes():
    given = lazily(arm(world(3), SETUPS["chain, cells"], 1)).requests[0]
    sent = pickle.dumps(given)
    columns = sum(getattr(given.trace, name).nbytes for name in COLUMNS)
    assert len(sent) < columns / 2
    got = pickle.loads(sent)
    assert replace(got, trace=None) == replace(given, trace=None)
    assert got.trace.header == given.trace.header
    assert encode(got.trace) == encode(given.trace)
