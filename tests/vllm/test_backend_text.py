"""Check `text` on vLLM: its own texts are those of its tokens at every kind of end, and a wrong order is found."""

import stat
import sys
from dataclasses import replace

import pytest

from audit.evidence.verdicts import Verdict
from engine.core.types import FinishReason, SamplingParams
from tests.support.texts import text_verdict

from .arms import NGRAM, answered, backend, plan, requests

pytestmark = pytest.mark.vllm

ENDS = {
    "plain": {},
    "string": {"stop": ("the", '"')},
    "behind": {"stop": ("e", "a"), "min_tokens": 6},
    "token": {"stop_token_ids": tuple(range(5, 60))},
    "on": {"ignore_eos": True},
    "drawn": {"temperature": 1.8, "ignore_eos": True},
}


def ending(prompts, name):
    """Requests that end in one way."""
    asked = requests(prompts[:6], SamplingParams(**ENDS[name]), lengths=(24, 40))
    return [replace(each, id=f"{name}-{each.id}") for each in asked]


@pytest.fixture(scope="module")
def found(prompts):
    """All ends in one batch of one engine; sampled rows need its repair."""
    shop = backend()
    arm = shop.arm(plan("ngram", options=NGRAM, engine={"repair": "expand"}))
    asked = [each for name in ENDS for each in ending(prompts, name)]
    generations = answered(arm, asked)
    shop.close()
    return generations


@pytest.mark.parametrize("name", ENDS)
def test_texts_are_those_of_the_tokens_at_every_end(found, name):
    generations = [each for key, each in found.items() if key.startswith(name)]
    result = text_verdict(generations)
    assert result.verdict is Verdict.CERTIFIED, [each.message for each in result.findings]
    assert result.n == len(generations)
    if name in ("string", "behind", "token"):
        assert any(each.finish_reason is FinishReason.STOP for each in generations)


def test_stop_strings_and_stop_tokens_are_not_in_the_texts_but_on_record(found):
    stopped = [each for each in found.values() if each.finish_reason is FinishReason.STOP]
    assert {each.request.id.partition("-")[0] for each in stopped} == {"string", "behind", "token"}
    longer = [each for each in stopped if len(each.facts["decoded"]) > len(each.text)]
    assert {each.request.id.partition("-")[0] for each in longer} == {"string", "behind"}


def test_a_detokenizer_that_reads_a_step_backwards_is_found(prompts, tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.vllm.backwards "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    shop = backend()
    arm = shop.arm(plan("ngram", options=NGRAM, engine={"python": str(wrapper)}))
    generations = list(answered(arm, requests(prompts[:6])).values())
    shop.close()
    result = text_verdict(generations)
    assert result.verdict is Verdict.FAULT
    assert 0 < result.statistic <= result.n
    assert all(each.facts["reconciliation"]["mismatches"] == [] for each in generations), "the tokens are right"
