"""The content root covers content, and nothing that another run of the same content changes."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from audit.evidence.records import RequestRecord
from audit.store import NewRequest, RunStatus, Store
from audit.store.reading.arm_reader import ArmRequest
from audit.store.reading.content_root import FACTS, LEFT_OUT, content_hash, content_root
from engine.core.types import FinishReason, RecordLevel, SamplingParams
from engine.record.facts import CONSTRAINT
from engine.record.trace import COLUMNS, STOP_BEGINS, TraceHeader, decode, encode
from tests.audit.store.build import fill, generation, start

PLACES = ("call", "row", "round", "unlike")
MADE = generation(((4, 2), (3, 3), (0, 0)), seed=3, level=RecordLevel.FULL)


@pytest.fixture(scope="module")
def record():
    """One request as a reader of the store gives it, with all columns of its level."""
    trace = decode(MADE.trace)
    return RequestRecord(
        request_id="r0",
        case_id="case-a",
        sample=0,
        domain="chat",
        trace=trace,
        tokens=trace.tokens,
        text=MADE.text,
        finish_reason=MADE.finish_reason,
        latency_us=MADE.latency_us,
        intact=True,
    )


def test_the_store_gives_the_same_record(store, record):
    run = store.begin_run(start())
    store.add_requests(run, [NewRequest("spec", "chat", "case-a", 0, MADE)])
    (found,) = store.load_arm(run, "spec").requests
    assert content_hash(found) == content_hash(record)


def with_trace(record, **changes):
    return replace(record, trace=replace(decode(MADE.trace), **changes))


def changed(column):
    """The column with another first value; a value where it was empty."""
    if not column.size:
        return np.ones((1,) * column.ndim, column.dtype)
    other = column.copy()
    other.flat[0] = 1 if np.isnan(float(other.flat[0])) else other.flat[0] + 1
    return other


@pytest.mark.medium
def test_two_runs_of_the_same_content_have_the_same_root(store):
    first, second = (store.load_run(finished(store)) for _ in range(2))
    assert first.content_root == second.content_root is not None
    assert first.record_root != second.record_root


def finished(store):
    run = fill(store)
    store.finish_run(run, RunStatus.FINISHED, 0)
    return run


def test_a_run_has_no_content_root_before_its_end(store):
    assert store.load_run(fill(store)).content_root is None


@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in LEFT_OUT])
def test_every_other_column_is_covered(record, name):
    other = with_trace(record, **{name: changed(getattr(record.trace, name))})
    assert content_hash(other) != content_hash(record)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_durations_and_batches_are_left_out(record, name):
    assert name in COLUMNS
    other = with_trace(record, **{name: changed(getattr(record.trace, name))})
    assert content_hash(other) == content_hash(record)


HEADER = {
    "request": "other",
    "level": RecordLevel.TOPK,
    "protocol": "gumbel",
    "lossless": False,
    "proposer": "ngram",
    "vocabulary": 9,
    "stream": 5,
    "sampling": SamplingParams(temperature=0.5, seed=2**62 + 1),
    "eos_ids": (1,),
    "finish_reason": None,
    "prompt": (1, 2, 4),
    "coupled_draft": True,
    "draft_versions": ({"number": 1},),
    "kept_share": 0.5,
    "facts": {"decoded": "x"},
}


@pytest.mark.parametrize("name", [each.name for each in fields(TraceHeader)])
def test_every_field_of_the_header_is_covered(record, name):
    """The reason of the end is the request's own."""
    if name == "finish_reason":
        other = replace(record, finish_reason=FinishReason.EOS)
    else:
        value = HEADER[name]
        value = type(record.trace.header.protocol)(value) if name == "protocol" else value
        other = with_trace(record, header=replace(record.trace.header, **{name: value}))
    assert content_hash(other) != content_hash(record)


def test_a_seed_beyond_the_integers_of_json_is_covered(record):
    sampling = replace(record.trace.header.sampling, seed=2**62)
    assert content_hash(with_trace(record, header=replace(record.trace.header, sampling=sampling))) != content_hash(
        record
    )


def test_places_in_a_batch_and_latencies_are_left_out(record):
    facts = dict.fromkeys(PLACES, 7)
    other = with_trace(record, header=replace(record.trace.header, facts=facts))
    assert content_hash(replace(other, latency_us=1)) == content_hash(record)


def test_the_names_of_facts_are_those_of_the_record():
    assert {STOP_BEGINS, CONSTRAINT} <= set(FACTS)
    assert not set(FACTS) & set(PLACES)


@pytest.mark.parametrize("change", [{"text": "x"}, {"tokens": (1,)}, {"domain": "code"}])
def test_what_the_request_answered_is_covered(record, change):
    assert content_hash(replace(record, **change)) != content_hash(record)


def test_the_place_of_a_request_in_the_suite_is_covered(record):
    requests = [ArmRequest("spec", replace(record, **change)) for change in ({}, {"case_id": "z"}, {"sample": 4})]
    roots = {content_root([request]) for request in (*requests, ArmRequest("other", record))}
    assert len(roots) == 4


@pytest.mark.medium
def test_the_order_in_which_requests_finished_does_not_matter(store):
    roots = set()
    for order in ((0, 1, 2), (2, 0, 1)):
        run = store.begin_run(start())
        for index in order:
            store.add_requests(run, [NewRequest("spec", "chat", f"case-{index}", 0, generation(((4, 2),), seed=index))])
        store.finish_run(run, RunStatus.FINISHED, 0)
        roots.add(store.load_run(run).content_root)
    assert len(roots) == 1


def test_a_trace_of_equal_columns_has_the_same_hash_whatever_its_compression(record):
    assert content_hash(replace(record, trace=decode(encode(decode(MADE.trace))))) == content_hash(record)


@pytest.mark.medium
def test_the_root_is_on_both_databases_the_same(any_url, tmp_path):
    with Store.open(any_url, create=False) as store, Store.open(str(tmp_path / "other.db"), create=True) as other:
        roots = {each.load_run(finished(each)).content_root for each in (store, other)}
    assert len(roots) == 1
