"""Under a grammar speculative and plain decoding emit the same tokens, and every answer follows the grammar."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from engine.core.types import FinishReason, Protocol, RecordLevel, Role
from engine.record.trace import decode, encode
from tests.engine.constraints.arms import CHOICE, DRAFTS, GRAMMARS, LIBRARIES, SENTENCE, decoded, requests, sampling


def tokens(generations):
    return {name: each.tokens for name, each in generations.items()}


@pytest.mark.medium
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("temperature", "rule"), [(0.0, Protocol.GREEDY), (1.0, Protocol.GUMBEL)])
def test_speculative_tokens_are_those_of_plain_decoding(library, temperature, rule):
    wanted = requests(12, *(sampling(each, library, temperature=temperature) for each in GRAMMARS))
    plain = tokens(decoded(rule, None, wanted))
    for proposer in DRAFTS:
        assert tokens(decoded(rule, proposer, wanted)) == plain, proposer


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "rule"), [(0.0, Protocol.GREEDY), (1.0, Protocol.GUMBEL)])
@pytest.mark.parametrize("proposer", DRAFTS)
def test_on_300_prompts(temperature, rule, proposer):
    wanted = requests(300, *(sampling(each, temperature=temperature, top_p=0.95) for each in GRAMMARS))
    assert tokens(decoded(rule, proposer, wanted, rows=8)) == tokens(decoded(rule, None, wanted, rows=8))


@pytest.mark.medium
@pytest.mark.parametrize("rule", [Protocol.CHAIN, Protocol.BLOCK, Protocol.TREE])
def test_drawn_answers_follow_the_grammar(rule):
    wanted = requests(16, sampling(SENTENCE, temperature=1.5), sampling(CHOICE, temperature=1.5))
    answers = decoded(rule, "specinfer" if rule is Protocol.TREE else "draft_model", wanted)
    for name, answer in answers.items():
        text = answer.text.removesuffix("_")
        if answer.finish_reason is FinishReason.LENGTH:
            continue
        if int(name[1:]) % 2:
            assert text in CHOICE["choice"]
        else:
            assert re.fullmatch(SENTENCE["regex"], text)
    assert sum(each.finish_reason is FinishReason.STOP for each in answers.values()) >= 12


@pytest.mark.medium
def test_rows_of_drafts_and_of_every_role_are_masked():
    wanted = requests(24, sampling(SENTENCE, temperature=1.0))
    seen = set()
    for answer in decoded(Protocol.CHAIN, "draft_model", wanted).values():
        trace = decode(answer.trace)
        for at, token in enumerate(trace.tokens):
            mask = trace.allowed(at)
            assert mask is not None
            assert mask[token]
            assert int(trace.mask_count[at]) == int(mask.sum()) < len(mask)
            seen.add((Role(int(trace.role[at])), int(trace.row[at]) > 0))
    assert {(Role.BONUS, True), (Role.RECOVERED, True), (Role.ACCEPTED, True)} <= seen


def test_the_draft_is_drawn_inside_the_grammar():
    wanted = requests(8, sampling(SENTENCE, temperature=1.0))
    for answer in decoded(Protocol.CHAIN, "draft_model", wanted).values():
        trace = decode(answer.trace)
        # a draft that ignored the grammar would put its mass on forbidden tokens
        assert np.all(trace.examined_p[trace.examined_accepted == 1] > 0)
        assert np.mean(trace.examined_p > 0) > 0.95


@pytest.mark.parametrize("level", RecordLevel)
def test_every_level_keeps_digests_and_only_full_keeps_bits(level):
    (answer,) = decoded(Protocol.CHAIN, "draft_model", requests(1, sampling(SENTENCE)), level=level).values()
    trace = decode(answer.trace)
    assert len(trace.mask_digest) == len(trace.mask_count) == len(trace.token)
    assert len(trace.mask_bits) == (len(trace.token) if level is RecordLevel.FULL else 0)


def test_the_record_has_a_second_account_of_every_mask():
    for answer in decoded(Protocol.CHAIN, "draft_model", requests(6, sampling(SENTENCE, temperature=1.0))).values():
        trace = decode(answer.trace)
        facts = trace.header.facts["constraint"]
        assert facts["masks"] == [f"{int(each):016x}" for each in trace.mask_digest]
        assert (facts["library"], facts["whole"]) == ("llguidance", answer.finish_reason is FinishReason.STOP)
        assert trace.header.sampling == answer.request.sampling


@pytest.mark.parametrize("rule", [Protocol.CHAIN, Protocol.BLOCK])
def test_a_trace_with_masks_is_its_bytes(rule):
    (answer,) = decoded(rule, "draft_model", requests(1, sampling(SENTENCE, temperature=1.0))).values()
    trace = decode(answer.trace)
    assert encode(trace) == answer.trace
    assert len(trace.spare_mask_bits) == len(trace.spare_logits)


def test_a_trace_without_a_grammar_has_no_masks():
    masked = requests(1, sampling(SENTENCE))
    (answer,) = decoded(Protocol.CHAIN, "draft_model", masked).values()
    assert decode(answer.trace).allowed(0) is not None
    plain = [replace(masked[0], sampling=replace(masked[0].sampling, structured=None))]
    (answer,) = decoded(Protocol.CHAIN, "draft_model", plain).values()
    assert decode(answer.trace).allowed(0) is None
