"""The stored document of an effective configuration survives being read: keys, order, types and digest."""

import json

import pytest

from audit.store.base.canonical import jsonable, sha256_json
from engine.core.steady import SteadyDrafts
from engine.record.effective import BaselineOrigin, Effective, LoopOwner, stated

NATIVE = {
    "backend": "native",
    "target": {"loader": "lean"},
    "draft": None,
    "numerics": {"mode": "tiled", "requested": "auto", "promises": "tree", "reason": None, "probe": {"passed": True}},
    "proposer": "draft_model",
    "proposer_shape": "chain",
    "proposer_state": "request",
    "draft_version": None,
    "gamma": 4,
    "steady_drafts": {"context": 512, "most": None},
    "protocol": "chain",
    "lossless": True,
    "verifier_options": {},
    "rows": 8,
    "record": "full",
    "fault": None,
}
FOREIGN = {
    "url": "http://127.0.0.1:8000/v1",
    "backend": "openai",
    "protocol": "chain",
    "lossless": True,
    "gamma": None,
    "rows": 8,
    "record": "tokens",
    "requested": {"model": "a", "speculation": True},
    "effective": {"model": "a"},
    "evidence": {"level": 1, "problems": []},
}
STRANGE = {
    "gamma": True,
    "steady_drafts": "yes",
    "numerics": ["tiled"],
    "lossless": 1,
    "evidence": {"level": 1},
    "earlier": {"run": "01A", "record_root": None, "more": 2},
    "rows": 8.0,
    "verifier_options": None,
}
DOCUMENTS = {
    "native": NATIVE,
    "foreign": FOREIGN,
    "strange": STRANGE,
    "empty": {},
    "reversed": dict([*NATIVE.items()][::-1]),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_given_back_as_it_was(name):
    document = DOCUMENTS[name]
    found = Effective.from_json(document)
    assert json.dumps(found.to_json()) == json.dumps(document)
    assert json.dumps(jsonable(found)) == json.dumps(document)
    assert sha256_json(found) == sha256_json(document)
    assert Effective.from_json(found.to_json()) == found


def test_what_a_check_reads_is_typed():
    found = Effective.from_json(NATIVE)
    assert (found.decoder, found.gamma, found.steady_drafts) == (LoopOwner.OWN, 4, SteadyDrafts(512))
    assert (found.numerics.mode, found.numerics.promises, found.numerics.reason) == ("tiled", "tree", None)
    assert found.facts == {"target": {"loader": "lean"}, "draft": None}
    other = Effective.from_json(FOREIGN)
    assert (other.decoder, other.requested["speculation"], other.in_effect) == (LoopOwner.FOREIGN, True, {"model": "a"})
    assert (other.evidence.level, other.evidence.problems) == (1, ())


def test_a_value_of_another_type_is_kept_and_not_read():
    found = Effective.from_json(STRANGE)
    assert (found.gamma, found.steady_drafts, found.numerics, found.lossless, found.rows) == (None,) * 5
    assert found.verifier_options == {}
    assert found.origin == BaselineOrigin("01A", None)
    assert set(found.facts) == set(STRANGE)


def test_a_fact_is_added_at_the_end():
    found = Effective.from_json(NATIVE).with_fact("earlier", {"run": "01A", "record_root": "ab"})
    assert found.origin == BaselineOrigin("01A", "ab")
    assert json.dumps(found.to_json()) == json.dumps({**NATIVE, "earlier": {"run": "01A", "record_root": "ab"}})


@pytest.mark.parametrize(
    ("decoder", "change", "message"),
    [
        (LoopOwner.OWN, {"requested": {}}, "has the form of one that is not"),
        (LoopOwner.FOREIGN, {}, "has the form of one that is not"),
        (LoopOwner.OWN, {"gamma": "four"}, "gamma of the effective configuration is 'four'"),
    ],
)
def test_a_backend_cannot_state_what_is_no_configuration(decoder, change, message):
    with pytest.raises(ValueError, match=message):
        stated(decoder, NATIVE | change)
    with pytest.raises(ValueError, match="lacks lossless"):
        stated(LoopOwner.OWN, {key: value for key, value in NATIVE.items() if key != "lossless"})
