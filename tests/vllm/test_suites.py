"""The packaged suite of sampling: what stock vLLM gets wrong on a CPU is found and named."""

import pytest

from .packaged import verdicts

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return verdicts(tmp_path_factory.mktemp("stock"), "sampling")


def test_parameters_of_drafted_rows_are_found_and_named(stock, spread_is_defective):
    if not spread_is_defective:
        pytest.skip("this build of vLLM spreads parameters over drafted rows")
    code, found = stock
    assert code == 1
    honoured = found["ngram", "honoured"]
    assert honoured["verdict"] == "fault"
    assert "probabilities of drafted rows are not those of the request's parameters" in honoured["summary"]
    assert "; 0 of" in honoured["summary"], "the other rows are right"
    assert found["ngram", "law"]["verdict"] == "fault"
    assert found["greedy-beside-sampled", "greedy_equality"]["verdict"] == "fault"
    assert found["ngram", "reconciliation"]["verdict"] == "certified"


def test_top_k_kills_the_engine_and_the_run_goes_on(stock, spread_is_defective):
    if not spread_is_defective:
        pytest.skip("this build of vLLM spreads parameters over drafted rows")
    _, found = stock
    liveness = found["top-k", "liveness"]
    assert liveness["verdict"] == "fault"
    assert liveness["findings"][0]["message"].startswith("engine_died")
    assert found["drawn-drafts", "liveness"]["verdict"] == "certified"


def test_the_ignored_block_rule_and_the_ignored_seed_are_named(stock):
    _, found = stock
    told = found["block", "configuration"]["summary"]
    assert "rejection_sample_method: requested 'block', effective 'standard'" in told
    assert found["drawn-drafts-repaired", "seed"]["verdict"] == "fault"
    assert found["drawn-drafts-repaired", "honoured"]["verdict"] == "certified"


def test_an_answer_that_may_not_end_behind_a_draft_is_found(stock):
    """Greedy, and in Python code of vLLM's first runner that knows no device: no matter of CPUs or of noise."""
    _, found = stock
    equality = found["min-tokens", "greedy_equality"]
    assert equality["verdict"] == "fault"
    assert "noise bound 0 " in equality["summary"]
    assert all("token 4 is" in each["message"] for each in equality["findings"]), "the one behind the first draft"
    assert found["min-tokens", "reconciliation"]["verdict"] == "certified"
    drawn = found["min-tokens-drawn", "honoured"]
    assert drawn["verdict"] == "fault"
    assert drawn["summary"].startswith("0 of "), "rows of drafted places are right"
    assert "as if the answer were still shorter than min_tokens" in drawn["summary"]
