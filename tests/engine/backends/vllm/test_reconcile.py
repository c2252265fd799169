"""Sources that agree, and each way in which one of them can lie."""

import dataclasses

import pytest

from engine.backends.vllm.reconcile import RequestMetrics, SourceReports, reconcile, reconcile_counters
from engine.backends.vllm.spool import SpooledStep

STEPS = (SpooledStep((), (5,)), SpooledStep((6, 7), (6, 8)), SpooledStep((9, 1), (9, 1, 2)))
TOLD = SourceReports((5, 6, 8, 9, 1, 2), STEPS, STEPS, RequestMetrics((1, 2), (2, 2)))


def replaced(index, **changes):
    return tuple(dataclasses.replace(step, **changes) if i == index else step for i, step in enumerate(STEPS))


def test_sources_that_agree_are_named():
    found = reconcile(TOLD)
    assert found.mismatches == ()
    assert found.sources == ("output", "worker", "scheduler", "metrics")


def test_tokens_behind_the_end_of_the_last_step_are_no_mismatch():
    assert reconcile(dataclasses.replace(TOLD, tokens=(5, 6, 8, 9))).mismatches == ()


def test_a_whole_step_behind_the_end_is_one_unless_a_stop_string_ended_it():
    short = dataclasses.replace(TOLD, tokens=(5, 6, 8))
    assert len(reconcile(short).mismatches) == 2
    late = dataclasses.replace(short, metrics=RequestMetrics((1,), (2,)), open_end=True)
    assert reconcile(late).mismatches == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"worker": replaced(1, emitted=(6, 3))}, "worker: token 2 is 3, the output has 8"),
        ({"scheduler": replaced(1, emitted=(6, 3))}, "scheduler: token 2 is 3"),
        ({"worker": replaced(1, drafted=(6, 3))}, "step 1: worker drafted [6, 3], scheduler [6, 7]"),
        ({"worker": STEPS[:2]}, "worker: token 3 is nothing, the output has 9"),
        (
            {"metrics": RequestMetrics((1, 1), (2, 2))},
            "step with drafts 1 has (accepted, drafted) (1, 2), recorded (2, 2)",
        ),
        ({"metrics": RequestMetrics((1,), (2,))}, "1 and 2 such steps"),
        ({"metrics": RequestMetrics((1, 2), (2, 1))}, "recorded (2, 2)"),
    ],
)
def test_every_lie_is_found(change, words):
    found = reconcile(dataclasses.replace(TOLD, **change))
    assert any(words in line for line in found.mismatches), found.mismatches


def test_a_silent_source_is_not_named():
    found = reconcile(dataclasses.replace(TOLD, worker=None, metrics=None))
    assert found.sources == ("output", "scheduler")
    assert found.mismatches == ()


def test_placeholders_of_a_scheduler_that_works_ahead_agree_with_any_draft():
    ahead = tuple(dataclasses.replace(step, drafted=(-1,) * len(step.drafted)) for step in STEPS)
    assert reconcile(dataclasses.replace(TOLD, scheduler=ahead)).mismatches == ()
    wrong = tuple(dataclasses.replace(step, drafted=(-1,)) for step in STEPS)
    assert reconcile(dataclasses.replace(TOLD, scheduler=wrong)).mismatches


def test_counters():
    right = {"drafts": 2, "draft_tokens": 4, "accepted_tokens": 3}
    assert reconcile_counters(STEPS, right).mismatches == ()
    for name in right:
        (line,) = reconcile_counters(STEPS, right | {name: 9}).mismatches
        assert line.startswith(f"counter {name}: 9, recorded {right[name]}")


def test_an_engine_that_counts_no_drafts_is_no_account():
    assert reconcile_counters(STEPS, {"preemptions": 2}).sources == ()
