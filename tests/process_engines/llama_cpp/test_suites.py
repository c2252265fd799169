"""The packaged suites on the real engine."""

import pytest

from tests.support.engine_suites import silent, surprises, uncertified, verdicts

pytestmark = pytest.mark.llama
WAYS = {"draft-model", "drawn-drafts", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"}


def test_tokens_are_certified_and_log_probabilities_of_drafts_are_zero(tmp_path):
    """A defect of the engine (llama.cpp 27972); all other checks of every way of speculating pass."""
    code, judged = verdicts(tmp_path, "suites/llama_cpp/greedy.yaml")
    assert {arm for arm, _ in judged} == WAYS
    assert uncertified(judged) == {(way, "logprob_closeness"): "fault" for way in WAYS}
    for way in WAYS:
        findings = judged[way, "logprob_closeness"]["findings"]
        assert all("log-probability 0, the baseline has" in finding["message"] for finding in findings)
    assert code == 1
    assert surprises("suites/llama_cpp/greedy.yaml", judged) == uncertified(judged)


def test_sampled_tokens_keep_the_law_and_matched_drafts_the_seeds(tmp_path):
    code, judged = verdicts(tmp_path, "suites/llama_cpp/sampling.yaml")
    assert uncertified(judged) == {}
    matched = {arm for arm, check in judged if check == "same_seed"}
    assert matched == (WAYS - {"drawn-drafts"}) | {"draft-top-k"}
    assert {arm for arm, check in judged if check == "token_law"} == WAYS | {
        "draft-top-k",
        "drawn-top-k",
        "drawn-top-p",
    }
    assert code == 0
    assert surprises("suites/llama_cpp/sampling.yaml", judged) == {}


def test_the_exact_law_is_kept(tmp_path):
    code, judged = verdicts(tmp_path, "suites/llama_cpp/exact_law.yaml")
    assert uncertified(judged) == {}
    assert {arm for arm, _ in judged} == {"draft-model", "drawn-drafts", "drawn-top-k", "ngram-simple"}
    assert code == 0


def test_every_parameter_is_kept_with_every_way_of_speculating(tmp_path):
    code, judged = verdicts(tmp_path, "suites/llama_cpp/parameters.yaml")
    assert uncertified(judged) == {}
    assert silent(tmp_path) == set()
    varied = ("repetition_penalty-1.3", "logit_bias-0", "bad_words-0", "stop-0", "max_new_tokens-37")
    assert {arm for arm, _ in judged} == {*WAYS, *(f"{way}.{name}" for way in WAYS for name in varied)}
    assert code == 0
