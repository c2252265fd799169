"""A callable that is no longer there, and a setting that vLLM ignores: both are told, neither is guessed."""

import numpy as np
import pytest

from engine.core.types import Protocol, RecordLevel, SamplingParams
from engine.record.trace import decode

from .arms import answered, backend, plan, requests
from .renamed import RENAMED

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def engine():
    shop = backend(extension="tests.vllm.renamed.Renamed")
    yield shop.arm(plan("draft_model", Protocol.BLOCK, draft="draft", options={"draft_sample_method": "probabilistic"}))
    shop.close()


def test_the_evidence_is_incomplete_and_says_why(engine):
    (problem,) = engine.effective_config().evidence.problems
    assert RENAMED.name in problem
    assert "not there" in problem
    assert engine.effective_config().evidence.level == engine.evidence_level() == 1


def test_what_is_left_is_the_schedulers_account_with_the_logprobs_of_the_output(engine, prompts):
    for generation in answered(engine, requests(prompts[:4])).values():
        trace = decode(generation.trace)
        assert trace.header.level is RecordLevel.TOKENS
        assert trace.tokens == generation.tokens
        assert trace.n_drafted.sum() > 0
        assert np.isfinite(trace.logprob).all()
        assert generation.facts["reconciliation"]["sources"] == ["output", "scheduler", "metrics"]
        assert generation.facts["level"] == 1


def test_the_block_rule_is_ignored_and_that_shows(engine):
    config = engine.effective_config()
    asked, runs = config.requested, config.in_effect
    differ = {name for name in asked if asked[name] != runs[name]}
    assert differ == {"rejection_sample_method", "draft_sample_method"}
    assert (asked["rejection_sample_method"], runs["rejection_sample_method"]) == ("block", "standard")
    assert config.protocol == "chain"


def test_a_sampled_request_is_answered_too(engine, prompts):
    found = answered(engine, requests(prompts[:1], SamplingParams(temperature=1.0)))["r0"]
    assert decode(found.trace).header.protocol is Protocol.CHAIN
