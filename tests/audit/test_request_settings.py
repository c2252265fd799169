"""Settings of a foreign engine's requests: the baseline has them too, and arms with unlike ones have two baselines."""

import pytest

from audit.errors import UserError
from audit.runs.arms import plan_arms
from audit.suite.loader import load_suite

SUITE = """
version: 1
name: settings
backend: vllm
models: {{target: bundled:target}}
workloads: [{{name: chat, prompts: 'suites:prompts/chat.jsonl', limit: 2}}]
engine: {{max_model_len: 640, request: {{unseeded: true}}}}
arms:
  - name: plain
    proposer: &ngram {{kind: ngram, gamma: 3}}
    verifier: greedy
    checks: [greedy_equality]
  - name: adapted
    proposer: *ngram
    verifier: greedy
    engine: {{enforce_eager: false, adapters: {{one: 'made:1'}}, request: {own}}}
    checks: [greedy_equality]
"""


def planned(tmp_path, own="{adapter: one}"):
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE.format(own=own))
    return {arm.name: arm for arm in plan_arms(load_suite(path))}


def test_a_baseline_has_the_settings_of_its_arm_s_requests_and_of_nothing_else(tmp_path):
    arms = planned(tmp_path)
    plain, adapted = arms["plain"].baseline, arms["adapted"].baseline
    assert arms[plain].plan.engine == {"max_model_len": 640, "request": {"unseeded": True}}
    adapters = {"one": "made:1"}
    assert arms[adapted].plan.engine == {"max_model_len": 640, "adapters": adapters, "request": {"adapter": "one"}}
    assert arms[f"{adapted}/alone"].plan.engine == arms[adapted].plan.engine


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("{adaptor: one}", 'unknown key "adaptor" in arms\\[1\\].engine.request'),
        ("{n: 0}", "n"),
        ("{prefix: hot}", "prefix"),
        ("{unseeded: []}", "unseeded"),
    ],
)
def test_a_mistake_is_found_before_anything_runs(tmp_path, own, words):
    with pytest.raises(UserError, match=words):
        planned(tmp_path, own)
