"""Accounts of one answer: they agree, and each way in which they can disagree has words of its own."""

import copy

import pytest

from engine.backends.llama_cpp.reconcile import mismatches
from engine.core.types import FinishReason

SPEC = "llamacpp:spec_decode_num_"
BODY = {"prompt": [5, 6], "n_predict": 3, "top_p": 0.9, "logit_bias": [[3, 1.5], [9, False]], "samplers": ["top_p"]}
ASKED = {"body": BODY, "gamma": 4}
ANSWER = {
    "tokens": [7, 8, 9],
    "stop_type": "limit",
    "tokens_predicted": 3,
    "tokens_evaluated": 2,
    "truncated": False,
    "completion_probabilities": [{"id": 7}, {"id": 8}, {"id": 9}],
    "generation_settings": {
        "n_predict": 3,
        "top_p": 0.8999999761581421,
        "logit_bias": [{"token": 3, "bias": 1.5}, {"token": 9, "bias": None}],
        "samplers": ["top_p"],
    },
    "timings": {"predicted_n": 3, "prompt_n": 2, "cache_n": 0, "draft_n": 4, "draft_n_accepted": 2},
}
HEADER = {
    "answer": ANSWER,
    "counters": {
        f"{SPEC}drafts_total": 3,
        f"{SPEC}draft_tokens_total": 8,
        f"{SPEC}accepted_tokens_total": 3,
        f"{SPEC}accepted_tokens_per_pos_total[0]": 2,
        f"{SPEC}accepted_tokens_per_pos_total[1]": 1,
    },
    "totals": {"drafted": 8, "accepted": 3},
}


def words(change=lambda header: None, reason=FinishReason.LENGTH, asked=ASKED):
    header = copy.deepcopy(HEADER)
    change(header)
    return list(mismatches(asked, header, reason))


def test_accounts_that_agree():
    assert words() == []
    assert words(lambda header: header["answer"].update(stop_type="eos"), FinishReason.EOS) == []
    cut = {"stop_type": "word", "completion_probabilities": [{"id": 7}]}
    assert words(lambda header: header["answer"].update(cut), FinishReason.STOP) == []


def put(*path):
    *places, name, value = path

    def change(header):
        for place in places:
            header = header[place]
        header[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (put("answer", "stop_type", "eos"), "ended with eos, its tokens end with length"),
        (put("answer", "tokens_predicted", 4), "tokens_predicted is 4, the answer has 3"),
        (put("answer", "timings", "predicted_n", 2), "predicted_n is 2"),
        (put("answer", "tokens_evaluated", 3), "the prompt has 2 tokens"),
        (put("answer", "timings", "cache_n", 1), "2 prompt tokens and 1 cached ones, of 2"),
        (put("answer", "truncated", True), "dropped tokens of the context"),
        (put("answer", "completion_probabilities", [{"id": 7}]), "of 1 tokens, not those of the 3"),
        (put("answer", "generation_settings", "top_p", 1.0), "top_p was set to 0.9, the server has 1.0"),
        (put("answer", "generation_settings", "logit_bias", []), "logit_bias was set to"),
        (put("answer", "generation_settings", "samplers", ["top_k"]), "samplers was set to"),
        (put("answer", "timings", "draft_n", 1), "2 accepted of 1 drafted"),
        (put("counters", f"{SPEC}drafts_total", 1), "8 tokens in 1 drafts of at most 4"),
        (put("counters", f"{SPEC}accepted_tokens_per_pos_total[1]", 0), "3 accepted tokens, 2 by position"),
        (put("totals", "drafted", 7), "8 drafted and 3 accepted tokens, the answers have 7 and 3"),
    ],
)
def test_a_contradiction_is_named(change, part):
    (message,) = words(change)
    assert part in message


def test_a_short_answer_is_not_at_its_limit():
    (message,) = words(asked={**ASKED, "body": {**BODY, "n_predict": 5}})[:1]
    assert "3 tokens at the limit of 5" in message


def test_drafts_without_speculation_are_named():
    assert any("4 drafted tokens without speculation" in each for each in words(asked={**ASKED, "gamma": 0}))
