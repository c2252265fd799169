"""Checks that share a reading give the results of each alone, and an arm's traces are decoded once."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from audit.checks import load
from audit.checks.interface import evaluate
from audit.checks.standard import FULL
from audit.checks.together import AskedCheck, evaluate_together
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


def arms():
    for name, setup in SETUPS.items():
        yield pytest.param(arm(world(3), setup, 6), id=name)
    clean = arm(world(3), SETUPS["chain, cells"], 6)
    trace = clean.requests[4].trace
    yield pytest.param(changed(clean, 4, node_parent=put(trace.node_parent, 0, 0)), id="misshapen")
    yield pytest.param(changed(clean, 2, cell_p=put(trace.cell_p, 0, np.nan)), id="without a number")
    yield pytest.param(changed(clean, 1, examined_q=put(clean.requests[1].trace.examined_q, 3, 0.4)), id="other q")
    yield pytest.param(replace(clean, requests=(*clean.requests, clean.requests[0])), id="one request twice")


@pytest.mark.parametrize("given", list(arms()))
def test_checks_that_share_a_reading_give_the_results_of_each_alone(given):
    evidence = Evidence(lazily(given))
    together = dict(evaluate_together({name: AskedCheck(load(name), {}) for name in FULL}, evidence))
    assert list(together) == list(FULL)
    for name, result in together.items():
        assert result == evaluate(load(name), evidence, {}), name


def test_columns_on_disk_give_the_same_results(monkeypatch):
    evidence = Evidence(lazily(arm(world(3), SETUPS["chain, cells"], 30)))
    names = ("law", "acceptance_theory")
    expected = [evaluate(load(name), evidence, {}) for name in names]
    monkeypatch.setattr(spooled, "IN_MEMORY", 512)
    monkeypatch.setattr(spooled, "ROWS", 256)
    assert [evaluate(load(name), evidence, {}) for name in names] == expected


def test_parameters_reach_the_checks_and_an_arm_without_requests_is_judged():
    evidence = Evidence(lazily(arm(world(3), SETUPS["chain, cells"], 6)))
    asked = {"law": AskedCheck(load("law"), {"leak_margin": 1.0, "min_tokens": 1})}
    assert dict(evaluate_together(asked, evidence))["law"].margin == 1.0
    empty = Evidence(replace(evidence.candidate, requests=()))
    for name in ("accounting", "replay", "law", "q_contract", "acceptance_theory"):
        (result,) = (found for _, found in evaluate_together({name: AskedCheck(load(name), {})}, empty))
        assert result == evaluate(load(name), empty, {})


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
