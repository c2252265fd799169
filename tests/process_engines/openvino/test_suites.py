"""The packaged suites on the real engine."""

import pytest

from tests.support.engine_suites import silent, uncertified, verdicts

pytestmark = pytest.mark.openvino


def test_one_request_at_a_time_is_certified(tmp_path):
    code, judged = verdicts(tmp_path, "suites/openvino/greedy.yaml")
    assert uncertified(judged) == {}
    assert {arm for arm, _ in judged} == {"draft-model", "confident-drafts", "prompt-lookup"}
    assert code == 0


def test_requests_together_get_tokens_of_others_with_a_draft_model(tmp_path):
    code, judged = verdicts(tmp_path, "suites/openvino/batch.yaml")
    assert code == 1
    wrong = uncertified(judged)
    assert {key for key, verdict in wrong.items() if verdict == "fault"} == {
        ("draft-model", "logprob_closeness"),
        ("confident-drafts", "logprob_closeness"),
    }
    assert "prompt-lookup" not in {arm for arm, _ in wrong}
    assert all(
        "more than 1 apart" in found["message"] for found in judged["draft-model", "logprob_closeness"]["findings"]
    )


def test_a_draft_model_breaks_the_law_of_sampling(tmp_path):
    """Every departure is an arm with a draft model; its seeds give other tokens too, which no rows explain."""
    code, judged = verdicts(tmp_path, "suites/openvino/sampling.yaml")
    assert code == 1
    wrong = uncertified(judged)
    drafted = {(arm, "token_law") for arm in ("warm", "top-k", "confident-drafts")}
    assert {key for key, verdict in wrong.items() if verdict == "fault"} == drafted
    assert set(wrong) - drafted <= {("warm", "seed"), ("confident-drafts", "seed")}
    assert ("confident-drafts", "seed") in wrong


def test_the_shortest_length_is_ignored_and_other_parameters_are_kept(tmp_path):
    code, judged = verdicts(tmp_path, "suites/openvino/parameters.yaml")
    assert code == 1
    assert silent(tmp_path) == set()
    wrong = uncertified(judged)
    ignored = {(f"{way}-min", "accounting") for way in ("draft-model", "confident-drafts", "prompt-lookup")}
    assert {key for key, verdict in wrong.items() if verdict == "fault"} == ignored
    assert all(arm.endswith("-min") for arm, _ in wrong)
    findings = [finding for arm, check in ignored for finding in judged[arm, check]["findings"]]
    assert all("min_tokens is 12" in finding["message"] for finding in findings)


def test_a_draft_model_breaks_the_exact_law(tmp_path):
    code, judged = verdicts(tmp_path, "suites/openvino/exact_law.yaml")
    assert code == 1
    assert uncertified(judged) == {(arm, "token_law"): "fault" for arm in ("draft-model", "draft-model-top-k")}
