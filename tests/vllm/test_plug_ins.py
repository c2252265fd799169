"""Settings that vLLM keeps without a draft and drops with one: the arm says so by name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .packaged import TIMEOUT
from .setting import ROOT

pytestmark = pytest.mark.vllm
PROCESSOR = """
from vllm.v1.sample.logits_processor import LogitsProcessor


class Plugged(LogitsProcessor):
    def __init__(self, vllm_config, device, is_pin_memory):
        pass

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        pass

    def apply(self, logits):
        return logits
"""
SUITE = {
    "version": 1,
    "name": "plugged",
    "backend": "vllm",
    "models": {"target": "bundled:target"},
    "engine": {"max_model_len": 640, "kv_cache_gib": 0.25, "engines": 1},
    "workloads": [{"name": "copy", "prompts": "suites:prompts/copy.jsonl", "limit": 2}],
    "sampling": {"max_new_tokens": 8},
    "coverage": {"directed": "off"},
    "arms": [
        {
            "name": "ngram",
            "proposer": {"kind": "ngram", "gamma": 3, "options": {"prompt_lookup_min": 1, "prompt_lookup_max": 3}},
            "verifier": "greedy",
            "checks": ["configuration"],
        }
    ],
}


def configuration(folder, suite, *sites):
    """The check `configuration` of a run; packages of `sites` are installed."""
    (folder / "suite.yaml").write_text(json.dumps(suite))
    results = folder / "results.json"
    audit = [str(Path(sys.executable).with_name("audit")), "run", str(folder / "suite.yaml")]
    done = subprocess.run(
        [*audit, "--store", f"sqlite:///{folder / 'audit.db'}", "--results", str(results)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *sites)))},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode in (0, 1, 3), done.stderr[-4000:]
    (check,) = (item for item in json.loads(results.read_text())["checks"] if item["check"] == "configuration")
    return check


@pytest.mark.parametrize("plugged", [True, False])
def test_a_processor_that_speculation_drops_is_a_setting_that_is_not_in_effect(tmp_path, plugged):
    site = tmp_path / "site"
    information = site / "plugged-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "plugged.py").write_text(PROCESSOR)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    points = "[vllm.logits_processors]\nplugged = plugged:Plugged\n" if plugged else ""
    (information / "entry_points.txt").write_text(points)
    check = configuration(tmp_path, SUITE, site)
    assert check["verdict"] == ("fault" if plugged else "certified"), check["summary"]
    told = "installed logits processors: requested ['plugged.Plugged'], effective []"
    assert (check["summary"] == told) is plugged


def test_lists_of_chosen_tokens_are_lost_with_a_draft(tmp_path):
    """vllm#42592 and its pull request 44727."""
    request = {"logprob_token_ids": [[5, 9]]}
    check = configuration(tmp_path, {**SUITE, "engine": {**SUITE["engine"], "request": request}})
    assert check["verdict"] == "fault", check["summary"]
    assert "logprob_token_ids: requested [5, 9], effective []" in check["summary"]
    assert "baseline" not in check["summary"]
