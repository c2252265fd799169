"""Neighbours whose client leaves a running vLLM: they are aborted, and the arm's own answers stay what they were."""

from dataclasses import replace

import pytest

from engine.backends.interface import Prompt
from engine.backends.neighbour import SUFFIX, Beside, NeighbourEngine
from engine.core.types import FinishReason, Protocol, SamplingParams

from .arms import NGRAM, answered, backend, plan, requests

pytestmark = pytest.mark.vllm
TEXTS = ("the cat the cat the", "one two three one two", "a dog and a cat", "go on and on and on", "once upon a time")


@pytest.mark.parametrize("proposer", [None, "ngram"])
def test_a_cancelled_request_has_no_answer_and_spoils_no_other_one(proposer):
    arm = backend().arm(plan(proposer, Protocol.GREEDY, options=NGRAM if proposer else {}))
    asked = requests([arm.encode(Prompt(text=text)) for text in TEXTS * 2], SamplingParams(), lengths=(16, 24))
    alone = answered(arm, asked)
    company = Beside(SamplingParams(max_new_tokens=40, ignore_eos=True), leaves_after=3)
    beside = answered(NeighbourEngine(arm, company), asked)
    assert {name: each.tokens for name, each in beside.items()} == {name: each.tokens for name, each in alone.items()}
    assert {tuple(each.facts["reconciliation"]["mismatches"]) for each in beside.values()} == {()}
    neighbours = [each for each in company.among(asked) if each.id.endswith(SUFFIX)]
    left = answered(arm, [*neighbours[:3], *(replace(each, leaves_after=0) for each in neighbours[3:5])])
    gone, kept = ([left[each.id] for each in part] for part in (neighbours[:3], neighbours[3:5]))
    assert {each.finish_reason for each in gone} == {FinishReason.ERROR}
    assert {each.facts["error"]["message"] for each in gone} == {"its client left"}
    assert {len(each.tokens) for each in kept} == {40}
