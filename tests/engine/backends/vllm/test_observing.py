"""Records of what the witnesses saw, read back as traces."""

import dataclasses

import numpy as np
import pytest

from engine.backends.second_decoding import NO_DECODING, SecondDecoding
from engine.backends.vllm.reconcile import NOTHING, Reconciliation
from engine.backends.vllm.spool import SpooledRows, SpooledStep
from engine.backends.vllm.supervise import CallFacts, Failure, RequestOutcome
from engine.backends.vllm.to_record import RecordOptions, generation_of
from engine.core.types import FinishReason, Protocol, QKind, RecordLevel, Request, Role, SamplingParams
from engine.record.foreign.requests import ForeignEngine
from engine.record.trace import decode

V = 10
REQUEST = Request("r", (1, 2), SamplingParams(temperature=1.0, max_new_tokens=5))


def spelled(prompt, tokens):
    """A decoder that spells tokens out, behind the prompt's number of tokens."""
    return SecondDecoding(f"{len(prompt)}:" + "".join(map(str, tokens)))


FOREIGN = ForeignEngine(V, (0,), Protocol.CHAIN, "draft_model", RecordLevel.FULL)
READING = RecordOptions(FOREIGN, drawn=True, decode=spelled)


def rows(count, seed):
    return np.random.default_rng(seed).normal(size=(count, V)).astype(np.float32)


def numbers(count, seed):
    q = np.full((count, V), 1 / V, np.float32)
    half = np.full(count, np.log(0.5), np.float32)
    return {
        "log_p_drafted": half,
        "log_p_emitted": half,
        "best": np.full(count, 3),
        "entropy": half,
        "variance": half,
    } | {"q": q}


def last(p):
    return {"log_p": float(np.log(p)), "entropy": 1.0, "variance": 1.0}


STEPS = (
    SpooledRows(SpooledStep((), (5,)), 2, rows(1, 1), last=last(0.25)),
    SpooledRows(SpooledStep((6, 7), (6, 8)), 2, rows(2, 2), numbers(2, 2), last(np.nan)),
    SpooledRows(SpooledStep((9, 3), (9, 3, 2)), 1, rows(3, 3), numbers(2, 3), last(0.75)),
)
ANSWER = {
    "tokens": [5, 6, 8, 9, 3],
    "text": "text",
    "finish_reason": "length",
    "stop_reason": None,
    "logprobs": [-1.0] * 5,
    "steps": {"accepted": [1, 2], "drafted": [2, 2]},
    "cached_tokens": 0,
    "latency_us": 7,
}
OUTCOME = RequestOutcome(REQUEST, None, ANSWER, STEPS, tuple(each.step for each in STEPS))
CALL = CallFacts({}, ())


def generation(call=CALL, counted=NOTHING, reading=READING, **changes):
    return generation_of(dataclasses.replace(OUTCOME, **changes), call, counted, reading)


def test_the_record_ends_where_the_output_ends():
    found = generation()
    trace = decode(found.trace)
    assert trace.tokens == found.tokens == (5, 6, 8, 9, 3)
    assert trace.position.tolist() == [2, 3, 5]
    assert trace.role.tolist() == [Role.PLAIN, Role.ACCEPTED, Role.RECOVERED, Role.ACCEPTED, Role.ACCEPTED]
    assert trace.q_kind.tolist() == [QKind.NONE, QKind.FULL, QKind.FULL]
    np.testing.assert_array_equal(trace.logits, np.concatenate([rows(1, 1), rows(2, 2), rows(3, 3)[:2]]))
    assert found.facts["dropped_tokens"] == 1
    assert (found.finish_reason, found.latency_us) == (FinishReason.LENGTH, 7)


@pytest.mark.parametrize(
    ("finish", "stop", "decoded"),
    [
        ("length", None, "2:56893"),
        # the end token, and one of stop_token_ids
        ("stop", None, "2:5689"),
        ("stop", 3, "2:5689"),
        # a stop string is cut from the text only
        ("stop", "nine", "2:56893"),
    ],
)
def test_tokens_are_decoded_again_without_the_one_that_ended_the_answer(finish, stop, decoded):
    answer = {**ANSWER, "finish_reason": finish, "stop_reason": stop}
    assert generation(answer=answer).facts["decoded"] == decoded


def test_a_text_that_cannot_be_decoded_again_says_so():
    found = generation(reading=dataclasses.replace(READING, decode=lambda *_: None))
    assert found.facts["undecoded"] == NO_DECODING
    assert "decoded" not in found.facts


@pytest.mark.parametrize(
    ("rounds", "facts"),
    [
        ((7, 8, 9), [[7, 9]]),
        # preempted, or waiting while another prompt was read
        ((7, 9, 10), [[7, 7], [9, 10]]),
        ((7, None, 9), None),
    ],
)
def test_the_engines_steps_are_on_record(rounds, facts):
    steps = tuple(dataclasses.replace(each, round=number) for each, number in zip(STEPS, rounds, strict=True))
    found = generation(worker=steps, call=dataclasses.replace(CALL, name="first"))
    assert found.facts.get("rounds") == facts
    assert found.facts.get("call") == ("first" if facts else None)
    assert decode(found.trace).header.facts == found.facts


def test_steps_behind_the_end_are_no_rounds():
    steps = tuple(dataclasses.replace(each, round=number) for number, each in enumerate(STEPS))
    # the engine's core learns of a stop string later
    answer = {**ANSWER, "tokens": [5, 6], "logprobs": None, "finish_reason": "stop", "stop_reason": "six"}
    assert generation(worker=steps, answer=answer).facts["rounds"] == [[0, 1]]


def test_probabilities_are_the_engines_own():
    trace = decode(generation().trace)
    np.testing.assert_allclose(trace.examined_p, [0.5] * 4)
    np.testing.assert_allclose(trace.examined_q, [1 / V] * 4)
    np.testing.assert_allclose(trace.p, [0.25, 0.5, 0.5, 0.5, 0.5])
    behind = (dataclasses.replace(STEPS[0], last={}), *STEPS[1:])
    np.testing.assert_allclose(decode(generation(worker=behind).trace).p, [np.nan, 0.5, 0.5, 0.5, 0.5])


def test_p_of_a_bonus_is_that_of_the_place_behind_the_draft():
    answer = {**ANSWER, "tokens": [5, 6, 8, 9, 3, 2], "logprobs": None}
    trace = decode(generation(answer=answer).trace)
    assert trace.role[-1] == Role.BONUS
    np.testing.assert_allclose(trace.p, [0.25, 0.5, 0.5, 0.5, 0.5, 0.75])


def test_without_rows_there_are_sums_over_the_tokens_whose_law_was_seen():
    # two drafted places of each step with a token in them, and two places behind
    half, told = np.log(0.5), generation().facts["processed"]
    assert told["tokens"] == 6
    assert told["log_p"] == pytest.approx(4 * half + np.log(0.25) + np.log(0.75), rel=1e-6)
    assert told["entropy"] == pytest.approx(4 * half + 2, rel=1e-6)
    bare = tuple(dataclasses.replace(each, numbers={}, last={}) for each in STEPS)
    assert "processed" not in generation(worker=bare).facts


def test_facts_are_in_the_record():
    found = generation()
    assert found.facts["reconciliation"] == {"sources": ["output", "worker", "scheduler", "metrics"], "mismatches": []}
    assert decode(found.trace).header.facts == found.facts
    assert "level" not in found.facts


def test_greedy_drafts_are_argmaxes_and_p_is_all_or_nothing():
    request = dataclasses.replace(REQUEST, sampling=SamplingParams(max_new_tokens=5))
    trace = decode(generation(request=request).trace)
    assert trace.q_kind.tolist() == [QKind.NONE, QKind.ONE_HOT, QKind.ONE_HOT]
    assert trace.examined_p.tolist() == [0.0, 0.0, 0.0, 1.0]
    # the tokens of the first step and behind drafts are argmaxes; of the others the engine's own row says 3
    assert trace.p.tolist() == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert trace.examined_q.tolist() == [1.0] * 4


def test_a_drawn_draft_without_its_row_has_no_q():
    steps = tuple(
        dataclasses.replace(each, numbers={k: v for k, v in each.numbers.items() if k != "q"}) for each in STEPS
    )
    assert decode(generation(worker=steps).trace).q_kind.tolist() == [QKind.NONE] * 3
    given = dataclasses.replace(READING, drawn=False)
    assert decode(generation(worker=steps, reading=given).trace).q_kind.tolist()[1:] == [QKind.ONE_HOT] * 2


def test_a_worker_that_says_other_tokens_is_not_believed():
    lied = (dataclasses.replace(STEPS[0], step=SpooledStep((), (4,))), *STEPS[1:])
    found = generation(worker=lied)
    trace = decode(found.trace)
    assert trace.header.level is RecordLevel.TOKENS
    assert trace.tokens == (5, 6, 8, 9, 3)
    assert trace.n_drafted.tolist() == [0, 2, 2]
    assert found.facts["level"] == 1
    assert "worker: token 0 is 4, the output has 5" in found.facts["why"]
    np.testing.assert_allclose(trace.logprob, [-1.0] * 5)


def test_with_neither_witness_the_output_is_all_there_is():
    found = generation(worker=None, scheduler=None)
    trace = decode(found.trace)
    assert trace.tokens == (5, 6, 8, 9, 3)
    assert trace.n_drafted.tolist() == [0] * 5
    assert found.facts["level"] == 1


@pytest.mark.parametrize(
    ("call", "counted", "words"),
    [
        (CallFacts({}, ("step 3 could not be recorded",)), NOTHING, "step 3"),
        (CALL, Reconciliation(("counters",), ("counter drafts: 3, recorded 2",)), "counter drafts"),
    ],
)
def test_what_is_wrong_with_the_call_lowers_each_of_its_requests(call, counted, words):
    found = generation(call, counted)
    assert found.facts["level"] == 1
    assert words in found.facts["why"]


@pytest.mark.parametrize(("counters", "told"), [({"preemptions": 3}, 3), ({"preemptions": 0}, None), (None, None)])
def test_requests_of_a_call_in_which_some_were_thrown_out_say_so(counters, told):
    assert generation(CallFacts(counters, ())).facts.get("preemptions_of_call") == told


def test_tokens_that_a_grammar_struck_out_were_not_drafted():
    steps = (STEPS[0], dataclasses.replace(STEPS[1], step=SpooledStep((6, -1), (6, 8))), STEPS[2])
    trace = decode(generation(worker=steps, scheduler=None).trace)
    assert trace.n_drafted.tolist() == [0, 1, 2]
    assert trace.role.tolist()[:3] == [Role.PLAIN, Role.ACCEPTED, Role.BONUS]


@pytest.mark.parametrize(("tokens", "reason"), [([5, 0], FinishReason.EOS), ([5, 6], FinishReason.STOP)])
def test_an_end_token_and_a_stop_are_told_apart(tokens, reason):
    steps = (STEPS[0], SpooledRows(SpooledStep((), (tokens[1],)), 1, rows(1, 4)))
    answer = {**ANSWER, "tokens": tokens, "finish_reason": "stop", "steps": None, "logprobs": None}
    assert generation(answer=answer, worker=steps, scheduler=None).finish_reason is reason


def test_a_failure_is_a_record_without_steps():
    found = generation(failure=Failure("refused", "no min_p"))
    assert found.finish_reason is FinishReason.ERROR
    trace = decode(found.trace)
    assert trace.steps == 0
    assert trace.header.facts["error"] == {"kind": "refused", "message": "no min_p"}
