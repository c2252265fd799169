"""The packaged suites on the real engine."""

import pytest

from tests.support.engine_suites import silent, uncertified, verdicts

pytestmark = pytest.mark.ort


def test_greedy_decoding_is_certified(tmp_path):
    code, found = verdicts(tmp_path, "suites/onnxruntime/greedy.yaml")
    assert uncertified(found) == {}
    assert {arm for arm, _ in found} == {"draft-model", "ngram"}
    assert code == 0


def test_top_p_keeps_tokens_that_the_nucleus_lacks(tmp_path):
    """The engine stops where a bound on the tail is met, which is beyond the nucleus of larger vocabularies."""
    code, found = verdicts(tmp_path, "suites/onnxruntime/sampling.yaml")
    assert code == 1
    faults = {key for key, verdict in uncertified(found).items() if verdict == "fault"}
    assert faults == {("top-p", "accounting")}
    assert all("outside the support" in each["message"] for each in found["top-p", "accounting"]["findings"])


@pytest.mark.parametrize("name", ["parameters", "exact_law"])
def test_every_parameter_and_the_exact_law_are_certified(tmp_path, name):
    code, judged = verdicts(tmp_path, f"suites/onnxruntime/{name}.yaml")
    assert uncertified(judged) == {}
    assert silent(tmp_path) == set()
    assert code == 0
