"""Facts and headers of another kind are refused in one line, whatever the kind."""

import copy
import json

import pytest

from engine.core.errors import InvalidRequest
from engine.record.envelope import DAMAGE
from engine.record.facts import KINDS, facts_fault
from engine.record.trace import header_document, header_of_document
from tests.audit.checks.simulator import Setup, arm, world

RIGHT = {
    "row": 0,
    "round": 3,
    "withdrawals": [3, 4],
    "level": 4,
    "call": "a",
    "decoded": "",
    "unlike": [[0, 2], [4, 4]],
    "rounds": [[1, 2]],
    "constraint": {},
    "stream": {},
    "error": {},
    "request": {},
    "ends": [1, 2],
    "tools": {"offered": [{}], "calls": [{"name": "f"}], "spans": [[1, 4]]},
}
ACCOUNT = {
    "masks": ["0123456789abcdef"],
    "counts": [3],
    "refused": None,
    "whole": True,
    "library": "xgrammar",
    "text": "",
}
WRONG = [None, "3", -1, 1.5, True, 2**40, [3], [[2, 1]], [[0, 1], [1, 2]], [["a", "b"]], {"calls": [{}]}]


def test_facts_of_the_expected_kinds_are_read():
    assert RIGHT.keys() == KINDS.keys()
    assert facts_fault(RIGHT) is None
    assert facts_fault({"another": object()}) is None


@pytest.mark.parametrize("mask", ["", None, 7, "\x00", "0" * 15, "-" + "0" * 15])
def test_a_digest_of_a_mask_is_hexadecimal(mask):
    assert facts_fault({"constraint": ACCOUNT}) is None
    assert facts_fault({"constraint": {**ACCOUNT, "masks": [mask]}}) is not None


@pytest.mark.parametrize("name", ACCOUNT)
def test_an_account_of_masks_is_whole(name):
    fewer = {key: value for key, value in ACCOUNT.items() if key != name}
    assert (facts_fault({"constraint": fewer}) is None) == (name == "masks")


@pytest.mark.parametrize("name", KINDS)
def test_a_fact_of_another_kind_is_named(name):
    refused = [value for value in WRONG if facts_fault({name: value}) is not None]
    assert len(refused) >= 6
    assert all(facts_fault({name: value}).startswith(f"the fact {name} ") for value in refused)


HEADERS = {
    "stream": ["-1", str(2**64), " 7", "x", None],
    "prompt": [["a"], [None], [1.5]],
    "eos_ids": [["a"], {"a": 1}],
    "vocabulary": ["16", None, 1.5],
    "lossless": [1, None, "yes"],
    "coupled_draft": [1, None],
    "proposer": [None, 3],
    "request": [None, 3],
    "facts": [None, [], "x"],
    "kept_share": ["1", None],
}
SAMPLING = {
    "stop": [[3], {"a": 1, 3: 2}],
    "stop_token_ids": [["a"], [1.5]],
    "bad_words": [[["a"]], [3]],
    "ignore_eos": [None, "no"],
    "top_k": ["3", 1.5],
    "max_new_tokens": [None, 0],
    "presence_penalty": ["1", float("inf")],
    "frequency_penalty": [None, float("nan")],
    "repetition_penalty": [float("inf"), "2"],
    "structured": [{"kind": "regex", "source": 3}, {"kind": "regex", "source": "a", "library": None}, {"source": "a"}],
}


@pytest.fixture(scope="module")
def document():
    return json.loads(json.dumps(header_document(arm(world(4), Setup(), 1).requests[0].trace.header)))


def test_a_header_is_read_back(document):
    assert header_document(header_of_document(copy.deepcopy(document))) is not None


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_with_a_value_of_another_kind_is_refused(document, name):
    for value in HEADERS[name]:
        with pytest.raises(DAMAGE):
            header_of_document({**copy.deepcopy(document), name: value})


@pytest.mark.parametrize("name", SAMPLING)
def test_parameters_of_another_kind_are_refused(document, name):
    for value in SAMPLING[name]:
        sampling = {**copy.deepcopy(document)["sampling"], name: value}
        with pytest.raises((InvalidRequest, *DAMAGE)):
            header_of_document({**copy.deepcopy(document), "sampling": sampling})
