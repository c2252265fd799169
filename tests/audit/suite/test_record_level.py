"""`record: auto` by the target's vocabulary, and where the two levels are shown."""

import json

import pytest

from audit.report.tables.verdicts import record_lines
from audit.runs.arms import plan_arms
from audit.runs.prepare import _spec
from audit.suite.loader import load_suite
from audit.suite.record_level import AUTO, LARGEST_WHOLE, effective_level, vocabulary_of
from engine.core.types import RecordLevel
from tests.audit.invoke import invoke
from tests.audit.suite_files import write_suite


def folder(path, config):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return str(path)


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ({"vocab_size": LARGEST_WHOLE}, RecordLevel.FULL),
        ({"vocab_size": LARGEST_WHOLE + 1}, RecordLevel.TOPK),
        ({"text_config": {"vocab_size": 2048}}, RecordLevel.FULL),
        ({}, RecordLevel.TOPK),
        ("no JSON", RecordLevel.TOPK),
        ("[1]", RecordLevel.TOPK),
    ],
)
def test_the_vocabulary_decides(tmp_path, config, level):
    assert effective_level(AUTO, folder(tmp_path / "target", config)) is level


def test_bundled_models_and_scripts_keep_whole_rows_and_hubs_do_not():
    assert vocabulary_of("bundled:target") == 2048
    assert effective_level(AUTO, "bundled:target") is effective_level(AUTO, "scripted:7") is RecordLevel.FULL
    assert effective_level(AUTO, "hf:org/name") is effective_level(AUTO, "served:name") is RecordLevel.TOPK


@pytest.mark.parametrize("level", list(RecordLevel))
def test_a_level_of_the_suite_stands(level):
    assert effective_level(level, "hf:org/name") is level


def test_both_levels_are_on_record_and_shown(tmp_path):
    path = write_suite(tmp_path)
    folder(tmp_path / "target", {"vocab_size": 152_000})
    suite = load_suite(path)
    arms = plan_arms(suite)
    assert {arm.plan.level for arm in arms if arm.spec} == {RecordLevel.TOPK}
    spec = next(_spec(arm) for arm in arms if arm.spec)
    assert (spec["record"], spec["requested_record"]) == ("topk", "auto")
    assert "record topk (auto)" in invoke("validate", str(path)).output
    path.write_text(path.read_text() + "\nrecord: full\n")
    assert "requested_record" not in next(_spec(arm) for arm in plan_arms(load_suite(path)) if arm.spec)


def test_lines_name_the_arms_of_each_pair():
    class Arm:
        def __init__(self, name, record, requested):
            self.name, self.spec = name, {"requested_record": requested} if requested else {}
            self.effective = type("Effective", (), {"record": record})

    arms = [Arm("a", "topk", "auto"), Arm("b", "topk", "auto"), Arm("c", "full", None)]
    assert list(record_lines(arms)) == ["topk, requested auto: a, b"]
