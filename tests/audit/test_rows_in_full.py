"""Every position of every request is examined: a row that is wrong after a draft that was kept whole is no pass.

A sampled arm parts from its baseline after a token or two, long before the first draft is kept whole.
"""

import pytest

from audit.checks import load
from audit.checks.base.interface import evaluate
from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.runs.arms import plan_arms
from audit.runs.prepare import prepare
from audit.selftest.run_arm import gather
from audit.suite.loader import load_suite
from tests.support.tiers import slow_unless

SUITE = """\
version: 1
name: rows
backend: scripted
seed: 11
batch_size: 8
models: {{target: "scripted:1", draft: "scripted:2"}}
workloads:
  - {{name: words, prompts: words.jsonl}}
sampling: {{max_new_tokens: 24}}
arms:
  - name: chain
    proposer: {{kind: draft_model, model: draft, gamma: 4}}
    verifier: chain
    sampling: {{temperature: 0.7, top_p: 0.95}}
    record: {record}
    {more}
"""
FAULTY = "fault: last_accepted_entry_stale"


def suite(folder, more="", prompts=40, record="full", **replaced):
    words = (f"{chr(97 + index % 26)}{chr(97 + index // 26)} word" for index in range(prompts))
    lines = (f'{{"id": "p{index:03d}", "prompt": "{text}"}}' for index, text in enumerate(words))
    (folder / "words.jsonl").write_text("\n".join(lines) + "\n")
    text = SUITE.format(more=more, record=record)
    for old, new in replaced.items():
        text = text.replace(old, new)
    path = folder / "suite.yaml"
    path.write_text(text)
    return load_suite(path)


def judged(evidence, **params):
    return evaluate(load("bitwise"), evidence, params)


@pytest.mark.medium
@pytest.mark.parametrize("prompts", slow_unless([24, 200], [24]))
def test_a_stale_entry_after_drafts_that_were_kept_whole_is_a_fault(tmp_path, prompts):
    evidence = gather(suite(tmp_path, FAULTY, prompts))
    result = judged(evidence)
    assert result.verdict is Verdict.FAULT, result.summary
    assert result.n == sum(len(each.tokens) for each in evidence.candidate.requests) == 24 * prompts
    assert 0.01 < result.statistic / result.n < 0.1
    assert result.details["baseline_positions"] < 0.2 * result.n
    assert "read again it is" in result.findings[0].message
    assert "apart in total variation" in result.findings[0].message


@pytest.mark.medium
@pytest.mark.parametrize("record", ["full", "topk", "scalars"])
def test_a_sound_arm_is_certified_at_every_position(tmp_path, record):
    result = judged(gather(suite(tmp_path, prompts=12, record=record)))
    assert result.verdict is Verdict.CERTIFIED, result.summary
    assert result.summary.startswith(
        "every row of logits is the target's own, bit by bit: 288 positions of 12 requests, each read again"
    )


def test_a_reread_is_the_target_alone_over_every_request_and_without_the_fault(tmp_path):
    trial = suite(tmp_path, FAULTY, record="scalars")
    (planned,) = (each for each in plan_arms(trial) if each.kind is ArmKind.REREAD)
    assert (planned.of, planned.most, planned.plan.proposer, planned.plan.fault) == ("chain", None, None, None)
    arm = next(each for each in prepare(trial).arms if each.planned == planned)
    assert len(arm.requests) == 40


def test_nothing_is_read_again_where_no_bits_are_promised(tmp_path):
    fast = {
        "backend: scripted": "backend: native",
        '"scripted:1"': "{source: bundled:target, numerics: fast}",
        '"scripted:2"': "bundled:draft",
    }
    assert ArmKind.REREAD not in {each.kind for each in plan_arms(suite(tmp_path, prompts=2, **fast))}
    forced = suite(tmp_path, "checks: {bitwise: {force: true}}", 2, **fast)
    assert ArmKind.REREAD in {each.kind for each in plan_arms(forced)}
