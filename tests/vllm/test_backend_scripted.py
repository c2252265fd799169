"""Verification without a draft model: drafts that are always right, never right, cut short, and such that kill."""

import json

import pytest

from engine.core.types import FinishReason, Request, Role, SamplingParams
from engine.record.trace import decode
from tests.vllm.scripted_drafts import WAYS

from . import setting
from .arms import ENGINE, answered, backend, plan, reconciled

pytestmark = pytest.mark.vllm

KILLING = "outside"
NEW = 20
SAMPLING = SamplingParams(max_new_tokens=NEW)
CLASS = "tests.vllm.scripted_drafts.ScriptedProposer"


@pytest.fixture(scope="module")
def asked(prompts):
    """One prompt per way; what our own engine says is the continuation."""
    return [Request(way, tuple(ids), SAMPLING) for way, ids in zip(WAYS, prompts, strict=False)]


@pytest.fixture(scope="module")
def expected(asked):
    engine = setting.arm(setting.Case("medusa", "", setting.REFERENCE / "medusa"))
    return {each.request.id: each.tokens for each in engine.generate(asked)}


@pytest.fixture(scope="module")
def engine(asked, expected, tmp_path_factory):
    path = tmp_path_factory.mktemp("scripted") / "script.json"
    texts = [{"prompt": each.prompt, "tokens": expected[each.id], "way": each.id} for each in asked]
    path.write_text(json.dumps({"continuations": texts, "end": 0}))
    shop = backend()
    options = {"model": CLASS, "script": str(path)}
    yield shop.arm(plan("custom_class", options=options, engine={**ENGINE, "restarts": 2}))
    shop.close()


@pytest.fixture(scope="module")
def found(engine, asked):
    return answered(engine, [each for each in asked if each.id != KILLING])


def test_the_targets_tokens_come_out_whatever_is_drafted(found, expected):
    for way, generation in found.items():
        assert generation.tokens == expected[way], way
        reconciled(generation)


def test_drafts_are_kept_as_far_as_they_are_right(found):
    roles = {way: set(decode(each.trace).role.tolist()) for way, each in found.items()}
    assert roles["right"] <= {Role.PLAIN, Role.ACCEPTED, Role.BONUS}
    assert roles["wrong"] == {Role.PLAIN, Role.RECOVERED}
    assert roles["half"] >= {Role.ACCEPTED, Role.RECOVERED}
    assert roles["empty"] == {Role.PLAIN}


def test_an_end_token_inside_a_draft_ends_nothing(found, expected):
    trace = decode(found["end_inside"].trace)
    assert 0 in trace.node_token.tolist()
    assert 0 not in expected["end_inside"][:-1]
    assert trace.tokens == expected["end_inside"]


def test_drafts_of_several_lengths(found):
    assert set(decode(found["varying"].trace).n_drafted.tolist()) >= {0, 1, 3}


def test_a_request_that_kills_the_engine_fails_alone(engine, asked, expected):
    """Tokens that do not exist end the worker; the engine is started again, and the one beside it answers."""
    both = answered(engine, [each for each in asked if each.id in (KILLING, "right")])
    error = decode(both[KILLING].trace).header.facts["error"]
    assert both[KILLING].finish_reason is FinishReason.ERROR
    assert error["kind"] == "engine_died"
    assert "Error" in error["message"]
    assert both["right"].tokens == expected["right"]
