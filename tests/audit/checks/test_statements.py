"""The loop's words about itself beside their second accounts: each that is changed is named."""

from dataclasses import replace

import pytest

from audit.checks.accounting.statements import batch_findings, recorded_batch, statement_findings
from audit.evidence.records import ArmKind
from audit.runs.in_memory import all_evidence
from audit.selftest.default_suite import default_suite
from audit.selftest.run_arm import prepared
from audit.selftest.scenarios import FAMILIES
from engine.core.types import FinishReason, Protocol, RecordLevel
from engine.record.effective import Effective
from engine.record.trace import TraceHeader


@pytest.fixture(scope="module")
def evidence():
    return all_evidence(prepared(default_suite(FAMILIES["tools"], None, 3, 256)))


def with_first(evidence, **header):
    """The evidence with another header of the first request; `facts` are changed one by one."""
    first, *others = evidence.candidate.requests
    facts = {**first.trace.header.facts, **header.pop("facts", {})}
    trace = replace(first.trace, header=replace(first.trace.header, facts=facts, **header))
    return replace(evidence, candidate=replace(evidence.candidate, requests=(replace(first, trace=trace), *others)))


def stating(evidence, **keys):
    document = {**evidence.candidate.effective.to_json(), **keys}
    return replace(evidence, candidate=replace(evidence.candidate, effective=Effective.from_json(document)))


def messages(evidence):
    arm = evidence.candidate
    batches = [recorded_batch(request) for request in arm.requests]
    return {finding.message for finding in (*statement_findings(evidence), *batch_findings(arm, batches))}


def test_a_clean_arm_agrees_with_itself(evidence):
    assert messages(evidence) == set()
    assert evidence.baseline is not None
    assert ArmKind.REDRAFT in evidence.companions
    assert any(request.trace.header.facts["unlike"] for request in evidence.candidate.requests)


def tools_of(evidence):
    return evidence.candidate.requests[0].trace.header.facts["tools"]


HEADERS = {
    "request": {"request": "another"},
    "proposer": {"proposer": "ngram"},
    "protocol": {"protocol": Protocol.GREEDY},
    "lossless": {"lossless": False},
    "record": {"level": RecordLevel.TOKENS},
    "end": {"finish_reason": FinishReason.ERROR},
    "prompt": {"prompt": (1, 2, 3)},
    "eos_ids": {"eos_ids": (99,)},
    "vocabulary": {"vocabulary": 7},
    "stream": {"stream": 1},
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_says_what_its_arm_and_the_baseline_say(evidence, name):
    (message,) = messages(with_first(evidence, **HEADERS[name]))
    assert message.startswith(f"its header says {name} ")


@pytest.mark.parametrize("change", [{"temperature": 0.5}, {"seed": 77}, {"max_new_tokens": 3}])
def test_a_header_says_the_parameters_of_the_baseline(evidence, change):
    sampling = replace(evidence.candidate.requests[0].trace.header.sampling, **change)
    assert any("says sampling" in message for message in messages(with_first(evidence, sampling=sampling)))


@pytest.mark.parametrize("change", [{"offered": []}, {"choice": "none"}, {"template": {}}, {"parser": "other"}])
def test_a_header_says_the_tools_of_the_baseline(evidence, change):
    (message,) = messages(with_first(evidence, facts={"tools": {**tools_of(evidence), **change}}))
    assert "says tools" in message


STATED = {
    "target": {"loader": "scripted", "seed": "9"},
    "context": 17,
    "numerics": {"mode": "fast"},
    "rows": 1,
    "torch_threads": 64,
    "draft": None,
    "gamma": 3,
    "steady_drafts": None,
    "proposer_options": {},
    "draft_numerics": {},
    "draft_rule": "other",
    "mixed": {"every": 4, "sampling": {}},
}


@pytest.mark.parametrize("key", STATED)
def test_an_arm_states_what_its_other_arms_state(evidence, key):
    assert any(f"states {key} " in message for message in messages(stating(evidence, **{key: STATED[key]})))


def test_a_statement_that_lacks_a_key_of_another_arm_is_named(evidence):
    document = evidence.candidate.effective.to_json()
    del document["proposer_state"]
    bare = replace(evidence, candidate=replace(evidence.candidate, effective=Effective.from_json(document)))
    assert messages(bare) == {"it states proposer_state None, another of its arms 'request'"}


@pytest.mark.parametrize("by", [-1, 64])
def test_batches_are_those_of_the_rounds(evidence, by):
    first, *others = evidence.candidate.requests
    trace = replace(first.trace, batch=first.trace.batch + by)
    broken = replace(evidence.candidate, requests=(replace(first, trace=trace), *others))
    assert any("said to be in the batch" in message for message in messages(replace(evidence, candidate=broken)))


def test_two_requests_are_in_no_row_at_once(evidence):
    rows = [request.trace.header.facts for request in evidence.candidate.requests]
    assert rows[0]["round"] == rows[1]["round"]
    assert any("in its row" in message for message in messages(with_first(evidence, facts={"row": rows[1]["row"]})))


def test_every_field_of_a_header_has_a_second_account_or_a_reason():
    compared = {*HEADERS, "sampling", "facts"} - {"record", "end"} | {"level", "finish_reason"}
    # a coupled draft shows in its numbers, versions in each step, kept rows by their own draw
    elsewhere = {"coupled_draft", "draft_versions", "kept_share"}
    assert compared | elsewhere == set(TraceHeader.__dataclass_fields__)


def test_batches_without_neighbours_are_exact(evidence):
    alone = stating(evidence, mixed=None)
    assert any("said to be in the batch" in message for message in messages(alone))
