"""Plan and run of arms on vLLM agree on what will not run."""

import pytest

from tests.audit.agreement import differences, write_suite

from .arms import ENGINE, NGRAM

pytestmark = pytest.mark.vllm

WARM = {"temperature": 1}
DRAFT = {"kind": "draft_model", "model": "draft", "gamma": 3}
LOOKUP = {"kind": "ngram", "gamma": 3, "options": NGRAM}


def test_arms_end_as_they_were_planned(tmp_path):
    arms = [
        {"name": "ngram", "proposer": LOOKUP, "verifier": "greedy"},
        {"name": "lookup", "proposer": LOOKUP, "verifier": "chain", "sampling": WARM, "record": "topk"},
        {"name": "text", "proposer": LOOKUP, "verifier": "chain", "sampling": WARM, "record": "tokens"},
        {
            "name": "drawn",
            "proposer": DRAFT | {"options": {"draft_sample_method": "probabilistic"}},
            "verifier": "chain",
            "sampling": WARM,
        },
    ]
    document = {
        "backend": "vllm",
        "models": {"target": "bundled:target", "draft": "bundled:medium_draft"},
        # unmodified vLLM breaks sampled drafts, and acceptance_drift raises an alarm where it was planned not to run
        "engine": ENGINE | {"repair": "all"},
        "sampling": {"max_new_tokens": 12},
        "arms": arms,
    }
    suite = write_suite(tmp_path, document, ("Once upon a time", "one two one two one", "The weather today"))
    assert differences(suite, tmp_path) == {}
