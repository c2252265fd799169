"""`audit selftest`: exit codes, the same bytes twice, in one process and in two."""

import itertools
import json
from dataclasses import replace

import pytest

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.selftest import battery, report, work
from audit.selftest.alarms import collect
from audit.selftest.detect import CheckDetection, Detection, DetectionLimits, ViewDetection
from audit.selftest.report import by_situation
from audit.selftest.work import FULL, QUICK, PresetOverrides, SelfTestResult, planned
from engine import faults
from tests.audit.invoke import invoke

SMALL = ("--seeds", "1", "--most", "256", "--most-outside", "256")


@pytest.mark.slow
def test_one_command_prints_the_same_bytes_in_one_process_and_in_two(tmp_path):
    arguments = ("selftest", *SMALL, "--fault", "argmax_draft_soft_q", "--fault", "logprobs_zero", "--clean", "2")
    pages = []
    for jobs in ("1", "2"):
        page, out = tmp_path / f"{jobs}.md", tmp_path / f"{jobs}.json"
        done = invoke(*arguments, "--jobs", jobs, "--markdown", str(page), "--json", str(out))
        assert done.exit_code == 0, done.output
        pages.append((done.stdout, page.read_bytes(), out.read_bytes()))
    assert pages[0] == pages[1]
    assert [each["fault"] for each in json.loads(pages[0][2])["detections"]] == ["argmax_draft_soft_q", "logprobs_zero"]


@pytest.mark.slow
def test_a_missed_fault_is_a_failure():
    done = invoke("selftest", *SMALL, "--fault", "lenient_0_1_percent", "--clean", "0", "--jobs", "1")
    assert done.exit_code == 1
    assert "FAILED: missed: lenient_0_1_percent" in done.stdout


def test_an_unknown_fault_is_one_line():
    done = invoke("selftest", "--fault", "sqrt_acceptence")
    assert done.exit_code == 2
    assert "did you mean sqrt_acceptance?" in done.stderr


def outcome(hits, caught=True, complete=True, sought=()):
    sight = ViewDetection(caught, 256, 3, 3 if caught else 0, hits)
    sights = dict.fromkeys(("record", "log-probabilities", "text"), sight)
    plan = planned(FULL, () if complete else ("sqrt_acceptance",), PresetOverrides(clean=0), 1)
    return SelfTestResult(plan, (Detection("sqrt_acceptance", sights),), collect([]), sought)


SLOW, BLIND = CheckDetection("seed", "seed_ignored", 1024, 20, 19), CheckDetection("bitwise", None, 16384, 0, 0)


def test_a_check_that_catches_nothing_by_itself_fails_the_self_test():
    assert report.failures(outcome({"law": 3}, sought=(SLOW, BLIND))) == ["checks that caught nothing: bitwise"]
    assert report.failures(outcome({"law": 3}, sought=(SLOW,))) == []


def test_checks_that_others_were_faster_than_are_on_the_page():
    text = report.page(outcome({"law": 3}, sought=(SLOW, BLIND)))
    assert "| seed | `seed_ignored` | 1024 | 19 of 20 |" in text
    assert "| bitwise | none | 16384 | 0 of 0 |" in text
    assert "Checks that need more" not in report.page(outcome({"law": 3}))
    assert report.document(outcome({"law": 3}, sought=(SLOW,)))["sought"][0]["check"] == "seed"


def test_only_where_every_fault_was_run_are_idle_checks_sought(monkeypatch):
    found = outcome({"law": 3}).detections[0]
    monkeypatch.setattr(work, "detect", lambda name, limits: replace(found, fault=name))
    monkeypatch.setattr(work, "seek", lambda check, limits: CheckDetection(check, None, 256, 0, 0))
    every = work.run(planned(FULL, (), PresetOverrides(clean=0), 1), lambda line: None)
    assert {each.check for each in every.sought} == set(battery.names()) - {"law"}
    assert work.run(planned(FULL, ("sqrt_acceptance",), PresetOverrides(clean=0), 1), lambda line: None).sought == ()


def test_the_page_names_what_caught_and_what_missed():
    text = report.page(outcome({"law": 3, "replay": 0}, complete=False))
    row = next(line for line in text.splitlines() if line.startswith("| `sqrt_acceptance`"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[3:8] == ["256", "3 of 3", "law", "-", "replay"]


def test_the_page_counts_faults_by_situation():
    assert "| rejected_first | 1 | 1 | - |" in report.page(outcome({"law": 3}))
    assert "| rejected_first | 1 | 0 | sqrt_acceptance |" in report.page(outcome({"law": 0}, caught=False))
    assert report.document(outcome({"law": 3}))["detections"][0]["situation"] == "rejected_first"


def test_every_fault_has_one_situation():
    assert sorted(itertools.chain(*by_situation().values())) == sorted(faults.REGISTRY)
    unneeded = {"plain_token", "likely_token", "context_short", "context_long", "later_turn"}
    assert set(CATALOGUE) - set(by_situation()) == unneeded | {"preempted", "cancelled_neighbour"}


def test_the_presets_name_faults_that_there_are():
    assert set(QUICK.faults) <= set(faults.REGISTRY)
    assert planned(FULL, (), PresetOverrides(), 1).complete
    assert planned(FULL, (), PresetOverrides(most=512), 1).limits == DetectionLimits(20, 512, 512)
