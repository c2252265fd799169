"""Formats of a run for programs, and badges: read by parsers of others, and inert with hostile text."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import junitparser
import pytest
from markdown_it import MarkdownIt

from audit.commands.look.report import BADGES, FORMATS
from audit.evidence.verdicts import Finding, Verdict
from audit.report.formats import REGISTRY
from audit.report.statements.badge import VERDICTS, Badge, BadgeSubject, badge_of, svg
from audit.report.tables.results import Results, results
from audit.store import Store
from tests.audit.invoke import invoke
from tests.audit.store.build import fill_finished
from tests.support.contrast import contrast

HOSTILE = "\x1b[2J|<script>alert(1)</script>&%0A\n::error::x \u202e"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Results:
    url = f"sqlite:///{tmp_path_factory.mktemp('formats') / 'audit.db'}"
    with Store.open(url, create=True) as store:
        return results(store, fill_finished(store))


def hostile(shown: Results) -> Results:
    """The run with a fault, an undecided check and a skipped one, whose texts a reader might obey."""
    (law, replay) = sorted(shown.checks, key=lambda check: check.check)
    finding = Finding(HOSTILE, 0, HOSTILE)
    changed = (
        replace(replay, verdict=Verdict.INCONCLUSIVE, summary=f"too few tokens {HOSTILE}"),
        replace(law, verdict=Verdict.FAULT, summary=f"too far {HOSTILE}", findings=(finding,)),
        replace(law, check="seed", verdict=Verdict.NOT_RUN),
        replace(law, check="text", verdict=Verdict.CERTIFIED),
    )
    return replace(shown, run=replace(shown.run, suite_name=HOSTILE), checks=changed)


def test_the_command_offers_what_is_registered():
    assert set(FORMATS) == set(REGISTRY)
    assert set(BADGES) == set(BadgeSubject)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_format_shows_what_is_not_certified_and_nothing_that_a_reader_obeys(shown, name):
    text = REGISTRY[name](hostile(shown))
    for words in ("too few tokens", "too far"):
        assert words in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not any(line.startswith("::error::x") for line in text.splitlines())


def test_junit_is_read_by_a_parser_of_others(shown):
    (suite,) = junitparser.JUnitXml.fromstring(REGISTRY["junit"](hostile(shown)).encode())
    outcomes = sorted(type(result).__name__ for case in suite for result in case.result)
    assert outcomes == ["Error", "Failure", "Skipped"]
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (4, 1, 1, 1)


@pytest.mark.slow
def test_sarif_fits_the_models_generated_from_its_published_schema(shown):
    from pydantic_sarif.model import StaticAnalysisResultsFormatSarifVersion210JsonSchema as Sarif

    for made in (shown, hostile(shown), replace(shown, checks=())):
        Sarif.model_validate_json(REGISTRY["sarif"](made))


def test_sarif_has_a_result_per_finding(shown):
    document = json.loads(REGISTRY["sarif"](hostile(shown)))
    (run,) = document["runs"]
    levels = [(result["ruleId"], result["level"]) for result in run["results"]]
    assert levels == [("replay", "warning"), ("law", "error"), ("law", "error")]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {"replay", "law"}
    clean = json.loads(REGISTRY["sarif"](replace(shown, checks=())))
    assert clean["runs"][0]["results"] == []


def test_annotations_put_faults_first_and_say_how_many_are_left_out(shown):
    law = next(check for check in shown.checks if check.check == "law")
    many = replace(shown, checks=tuple(replace(law, check=f"law{number}") for number in range(12)))
    lines = REGISTRY["github"](many).splitlines()
    assert sum(line.startswith("::error title=") for line in lines) == 10
    assert "2 more claims not shown" in lines[-1]
    first = REGISTRY["github"](hostile(shown)).splitlines()[0]
    assert first.startswith("::error title=audit%3A spec%2C law%3A fault::")


def test_the_summary_is_one_table_without_markup_of_the_store(shown):
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(REGISTRY["summary"](hostile(shown)))
    assert html.count("<table>") == 1
    assert "<script" not in html
    assert "1 checks did not run" in html


def test_a_badge_says_the_conclusion_and_can_be_read(shown):
    assert badge_of(shown.run, BadgeSubject.VERDICT) == VERDICTS[1]
    assert badge_of(replace(shown.run, exit_code=None), BadgeSubject.VERDICT).value == "unfinished"
    counts = next(arm.counts for arm in shown.run.arms if arm.name == "spec")
    rate = badge_of(shown.run, BadgeSubject.ACCEPTANCE)
    assert rate.value == f"{100 * counts.accepted / counts.drafted:.1f} %"
    assert badge_of(replace(shown.run, arms=()), BadgeSubject.ACCEPTANCE).value == "unknown"
    for badge in (*VERDICTS.values(), rate):
        assert contrast("#ffffff", badge.colour) >= 4.5
    drawn = ElementTree.fromstring(svg(Badge("a<b", "c", "#000")))
    assert drawn.get("aria-label") == "a<b: c"


@pytest.mark.medium
def test_the_command_prints_a_format_and_writes_a_badge(tmp_path):
    url, badge = f"sqlite:///{tmp_path / 'audit.db'}", tmp_path / "badge.svg"
    with Store.open(url, create=True) as store:
        run = fill_finished(store)
    printed = invoke("report", run, "--store", url, "--format", "junit")
    assert printed.exit_code == 0
    assert "<testsuites>" in printed.stdout
    assert invoke("report", run, "--store", url, "--badge", str(badge)).stdout == f"{badge}\n"
    assert "fault" in badge.read_text("utf-8")
    again = invoke("report", run, "--store", url, "--badge", str(badge))
    assert (again.exit_code, "the file exists" in again.stderr) == (2, True)
    both = invoke("report", run, "--store", url, "--badge", "x.svg", "--format", "junit")
    assert (both.exit_code, len(both.stderr.splitlines())) == (2, 1)
