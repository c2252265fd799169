"""Filters in a suite: where they apply, what is refused and where the message points."""

import pytest

from audit.errors import UserError
from audit.minimize.suite_writer import document_of
from audit.runs.arms import plan_arms
from audit.suite.loader import load_suite
from engine.stream.interface import Action, Side
from tests.audit.suite_files import SUITE, write_suite

RULES = "{categories: {weapons: [bomb]}}"
HEAD = """\
filters:
  - {kind: patterns, action: redact, rules: words.yaml}
  - {kind: patterns, side: prompt, action: refuse, options: {categories: {drugs: [pills]}}}
"""


def written(folder, text, rules=RULES):
    (folder / "words.yaml").write_text(rules)
    return write_suite(folder, text)


def test_every_arm_and_its_baseline_have_the_suite_s_filters(tmp_path):
    suite = load_suite(written(tmp_path, SUITE + HEAD))
    first, second = suite.arms[0].stream.filters
    assert (first.kind, first.action, first.side) == ("patterns", Action.REDACT, Side.OUTPUT)
    assert first.document == {"categories": {"weapons": ["bomb"]}}
    assert (second.side, second.document) == (Side.PROMPT, {"categories": {"drugs": ["pills"]}})
    decoding = [arm for arm in plan_arms(suite) if not arm.kind.reads]
    assert {arm.plan.stream for arm in decoding} == {suite.arms[0].stream}
    assert all(arm.plan.stream is None for arm in plan_arms(suite) if arm.kind.reads)
    assert {"no_leak", "filter_equality"} <= set(suite.arms[1].checks)


def test_an_arm_s_own_filters_have_a_baseline_of_their_own(tmp_path):
    suite = load_suite(written(tmp_path, SUITE + "    filters: []\n" + HEAD))
    assert (len(suite.arms[0].stream.filters), suite.arms[1].stream) == (2, None)
    text = SUITE.replace("    checks: [greedy_equality, replay]", "    filters: []\n    stream: true")
    suite = load_suite(written(tmp_path / "second", text) if (tmp_path / "second").mkdir() is None else "")
    assert suite.arms[0].stream.filters == ()
    assert "no_leak" in suite.arms[0].checks
    assert "filter_equality" not in suite.arms[0].checks


def test_the_rule_file_is_part_of_the_suite_s_digest(tmp_path):
    path = written(tmp_path, SUITE + HEAD)
    before = load_suite(path).sha256
    (tmp_path / "words.yaml").write_text("{categories: {weapons: [gun]}}")
    assert load_suite(path).sha256 != before


def test_a_minimal_suite_has_the_rules_in_itself(tmp_path):
    suite = load_suite(written(tmp_path, SUITE + HEAD))
    arm = document_of(suite)["arms"][0]
    assert arm["stream"] is True
    assert arm["filters"][0] == {
        "kind": "patterns",
        "side": "output",
        "action": "redact",
        "options": {"categories": {"weapons": ["bomb"]}},
    }


@pytest.mark.parametrize(
    ("filters", "rules", "said"),
    [
        ("- {kind: pattern, action: redact}", RULES, 'unknown filter "pattern"; .*patterns'),
        ("- {kind: patterns, action: redact, rules: none.yaml}", RULES, "no rule file .*; write a path"),
        ("- {kind: patterns, action: redact}", RULES, "filter patterns needs categories: .*; change the filter"),
        ("- {kind: patterns, action: hide, rules: words.yaml}", RULES, "hide"),
        ("- {kind: patterns, side: prompt, action: stop, rules: words.yaml}", RULES, "a prompt can only be refused"),
        ("- {kind: patterns, action: redact, rules: words.yaml}", "[bomb]", "rules are a mapping; see docs/filters.md"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path, filters, rules, said):
    path = written(tmp_path, f"{SUITE}filters:\n  {filters}\n", rules)
    with pytest.raises(UserError, match=rf"(suite|words)\.yaml:\d+: .*{said}"):
        load_suite(path)


def test_filters_without_a_stream_are_refused(tmp_path):
    with pytest.raises(UserError, match="filters read the stream; write stream: true, or filters: \\[\\]"):
        load_suite(written(tmp_path, SUITE + "stream: false\n" + HEAD))


def test_other_engines_have_no_filters(tmp_path):
    text = SUITE.replace("seed: 7", "seed: 7\nbackend: transformers").replace("kind: ngram", "kind: prompt_lookup")
    with pytest.raises(UserError, match="only the built-in engine has streams and filters; remove this"):
        load_suite(written(tmp_path, text + HEAD))
