"""Plan and run of arms on vLLM agree on what will not run, and on how every check of a packaged suite ends."""

import pytest
import yaml

from tests.audit.agreement import differences, misses, run_seconds, with_trial, write_suite

from .arms import ENGINE, NGRAM
from .setting import ROOT

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


def test_a_packaged_suite_ends_as_a_trial_plans_it(tmp_path):
    """The first two arms; eight would start an engine each."""
    suite = yaml.safe_load((ROOT / "suites" / "vllm" / "greedy.yaml").read_text(encoding="utf-8"))
    rows = [row | {"prompts": row["prompts"].replace("../", "suites:")} for row in suite["workloads"]]
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(suite | {"workloads": rows, "arms": suite["arms"][:2]}), encoding="utf-8")
    ended = with_trial(path, tmp_path)
    assert (ended.codes, misses(ended.plan, ended.results)) == ((0, 0), {})
    print(f"planned {ended.plan['seconds']:.0f} s, took {run_seconds(ended.results):.0f} s")
