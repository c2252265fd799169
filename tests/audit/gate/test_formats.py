"""Every output format, on a decision whose reasons hold what a terminal, a workflow or a page would obey."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import junitparser
import pytest

from audit.commands.decide.gate import FORMATS
from audit.gate.decision import Decision, GateOutcome, blocked, next_step, remark, undecided
from audit.gate.formats import REGISTRY
from audit.gate.judgement import GateJudgement, GateRequest
from audit.gate.policy import load_policy
from tests.audit.gate.runs import NOW, facts

HOSTILE = "\x1b[2J|<b>&%0A\n::error::x \u202e"
REASONS = (
    remark("subject target", "not named; --no-subject waived it"),
    undecided("law", f"arm sampled: law is missing {HOSTILE}", "sampled", "law"),
    blocked("replay", "arm greedy: replay is fault", "greedy", "replay"),
)


def judgement(outcome: GateOutcome | None = None, **changes: object) -> GateJudgement:
    request = replace(GateRequest(load_policy("standard"), (), "ci", NOW), **changes)
    return GateJudgement(facts(), outcome or GateOutcome(Decision.BLOCK, REASONS), request, "sqlite:///audit.db")


def test_the_command_offers_what_is_registered():
    assert set(FORMATS) == set(REGISTRY)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_format_shows_every_reason_on_its_own_and_nothing_that_a_reader_obeys(name):
    text = REGISTRY[name](judgement())
    plain = text.replace("\\", "")
    for word in ("law is missing", "replay is fault"):
        assert word in plain
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not any(line.startswith("::error::x") for line in text.splitlines())
    assert REGISTRY[name](GateJudgement(None, GateOutcome(Decision.CANNOT_DECIDE, ()), judgement().request, "x"))


def test_json_says_what_was_asked():
    document = json.loads(REGISTRY["json"](judgement(trust_verdicts=True, warn_only=True)))
    assert (document["decision"], document["exit_code"], document["verdicts"]) == ("block", 0, "stored")
    assert document["reasons"][1]["check"] == "law"
    assert document["reasons"][2]["next"].startswith("audit show 01J0")
    assert set(document["engines"]) == {"greedy", "sampled"}


def test_junit_counts_the_worst_of_each_requirement():
    suite = ElementTree.fromstring(REGISTRY["junit"](judgement())).find("testsuite")
    assert (suite.get("failures"), suite.get("errors")) == ("1", "1")
    met = {case.get("name") for case in suite if not len(case)}
    assert "acceptance" in met
    assert {case.get("name") for case in suite if case.find("failure") is not None} == {"replay"}


def judgements() -> list[GateJudgement]:
    missing = GateJudgement(None, GateOutcome(Decision.CANNOT_DECIDE, REASONS[1:2]), judgement().request, "x")
    return [judgement(), judgement(warn_only=True), judgement(GateOutcome(Decision.ALLOW, REASONS[:1])), missing]


def test_junit_is_read_by_a_parser_of_others():
    counts = []
    for made in judgements():
        (suite,) = junitparser.JUnitXml.fromstring(REGISTRY["junit"](made).encode())
        outcomes = [type(result).__name__ for case in suite for result in case.result]
        counted = (outcomes.count("Failure"), outcomes.count("Error"))
        assert (suite.failures, suite.errors, suite.tests) == (*counted, len(list(suite)))
        counts.append(counted)
    assert counts == [(1, 1), (1, 1), (0, 0), (0, 1)]


@pytest.mark.slow
def test_sarif_fits_the_models_generated_from_its_published_schema():
    from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

    read = [Sarif.model_validate_json(REGISTRY["sarif"](made)) for made in judgements()]
    assert [len(log.runs[0].results) for log in read] == [3, 3, 1, 1]
    broken = json.loads(REGISTRY["sarif"](judgement()))
    broken["runs"][0]["results"][0]["severity"] = "error"
    with pytest.raises(ValueError, match="severity"):
        Sarif.model_validate(broken)


def test_github_annotates_at_most_ten_and_warns_if_asked():
    many = GateOutcome(Decision.BLOCK, tuple(blocked("law", f"arm {i}") for i in range(14)))
    lines = REGISTRY["github"](judgement(many)).splitlines()
    assert sum(line.startswith("::error ") for line in lines) == 10
    assert lines[-1].endswith("4 more reasons not shown")
    assert "::warning title=" in REGISTRY["github"](judgement(many, warn_only=True))


def test_sarif_has_a_rule_for_each_result():
    run = json.loads(REGISTRY["sarif"](judgement()))["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [rules[result["ruleIndex"]] for result in run["results"]] == [reason.requirement for reason in REASONS]


def test_a_warning_leaves_the_decision_and_no_error_of_the_gate_becomes_one():
    warned = judgement(warn_only=True)
    assert (warned.exit_code, warned.outcome.answer) == (0, Decision.BLOCK)
    assert "--warn-only" in REGISTRY["text"](warned)
    assert judgement(GateOutcome(Decision.CANNOT_DECIDE, (), broken_off=True), warn_only=True).exit_code == 3


def test_every_reason_but_a_remark_has_a_next_step():
    requirements = ("record", "subject draft", "serves sampled", "law", "parameters")
    assert all(next_step(undecided(name, "x"), "RUN") for name in requirements)
    assert next_step(blocked("law", "x"), "RUN") == (
        "audit show RUN has the findings, audit minimize RUN finds a small reproducer"
    )
    assert next_step(remark("verdicts", "x"), "RUN") is None
