"""The pictures on the checks' pages are those of the numbers beside them, and the numbers are measured."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from audit import checks
from audit.evidence.records import ArmKind
from engine import faults
from engine.core.types import SamplingParams
from engine.faults.interface import Scenario
from tests.bench.growing import Growing, scripted_plan
from tests.bench.power import PAGES, PLANS, TIMED, Plan, drawn, line, needed, picture, seeds_at, sentence, shown
from tests.bench.svg import Curve, chart

pytestmark = pytest.mark.slow
SVG = "{http://www.w3.org/2000/svg}"
SHORT = Scenario(sampling=SamplingParams(temperature=1.0, max_new_tokens=16))


@pytest.mark.parametrize("name", drawn())
def test_every_check_has_a_picture_of_its_numbers_on_its_page(name):
    again = f"run: python -m tests.bench.power --only {name}"
    files = [PAGES / "power" / f"{name}.{ending}" for ending in ("json", "svg")]
    assert all(path.exists() for path in files), again
    found, drawn = json.loads(files[0].read_text()), files[1].read_text()
    assert drawn == picture(found), again
    assert len(drawn.encode()) <= 12_000
    root = ElementTree.fromstring(drawn)
    assert len(root.findall(f"{SVG}circle")) == sum(len(each["points"]) for each in found["lines"])
    page = (PAGES / f"{name}.md").read_text()
    assert f"](power/{name}.svg)" in page, again
    assert sentence(found) in page, again


def test_only_checks_of_the_clock_have_no_picture():
    assert all(checks.load(name).claim == "cost" for name in TIMED)


@pytest.mark.parametrize("name", list(PLANS))
def test_the_numbers_are_those_of_the_plan(name):
    found = json.loads((PAGES / "power" / f"{name}.json").read_text())
    assert [each["fault"] for each in found["lines"]] == [*PLANS[name].faults, None]
    for each in found["lines"]:
        assert all(0 <= point["faults"] <= point["seeds"] for point in each["points"])
        assert [point["tokens"] for point in each["points"]] == sorted(point["tokens"] for point in each["points"])


@pytest.mark.parametrize("name", list(PLANS))
def test_planned_faults_can_be_shown(name):
    assert name in checks.REGISTRY
    for fault in PLANS[name].faults:
        assert scripted_plan(faults.load(fault).scenario, fault).fault == fault


def test_a_line_counts_the_seeds_that_the_check_calls_a_fault():
    plan = Plan(("argmax_draft_soft_q",), 64, length=16)
    broken, clean = line("q_contract", plan, "argmax_draft_soft_q", 3), line("q_contract", plan, None, 3)
    # one that is seen twice by all seeds ends early, one without a fault never does
    assert [each["faults"] for each in broken["points"][-2:]] == [3, 3]
    assert [(each["tokens"], each["faults"]) for each in clean["points"]] == [(16, 0), (32, 0), (64, 0)]
    assert (broken["seeds_ever"], clean["seeds_ever"]) == (3, 0)


def test_a_larger_arm_begins_with_the_smaller_one():
    kinds = (ArmKind.BASELINE, ArmKind.ANCHOR)
    grown = Growing(SHORT, None, 3, kinds)
    first, second = grown.grown(16), grown.grown(48)
    whole = Growing(SHORT, None, 3, kinds).grown(48)
    for each in (first, second, whole):
        assert {each.baseline.kind, *each.companions} == set(kinds)
    for pick in (lambda e: e.candidate, lambda e: e.baseline, lambda e: e.companions[ArmKind.ANCHOR]):
        told = [[each.tokens for each in pick(one).requests] for one in (first, second, whole)]
        assert [len(each) for each in told] == [1, 3, 3]
        assert told[1][:1] == told[0]
        assert told[1] == told[2]
    assert Growing(SHORT, None, 4).grown(16).candidate.requests[0].tokens != first.candidate.requests[0].tokens


def test_prompts_take_turns():
    requests = Growing(SHORT, None, 1, prompts=2).grown(64).candidate.requests
    assert [each.key for each in requests] == ["r00000#0", "r00000#1", "r00001#0", "r00001#1"]
    assert len({each.tokens for each in requests}) == 4


def test_bundled_models_cannot_grow():
    with pytest.raises(ValueError, match="scripted"):
        Growing(replace(SHORT, models="bundled"), None, 1)


def points(*shares):
    return [{"tokens": 2**at, "seeds": 10, "faults": hits} for at, hits in enumerate(shares)]


def test_tokens_needed_are_those_from_which_on_the_power_is_kept():
    assert needed(points(0, 9, 8, 9, 10)) == 8
    assert needed(points(10, 10)) == 1
    assert needed(points(10, 8)) is None


def found_of(*lines):
    made = [{"fault": fault, "points": points(*hits), "seeds_ever": max(hits)} for fault, hits in lines]
    return {"check": "law", "command": "again", "seeds": 10, "most_tokens": 64, "lines": made}


def test_the_sentence_says_what_was_and_was_not_seen():
    text = " ".join(sentence(found_of(("a", (0, 10)), ("b", (9, 9)), ("c", (0, 3)), (None, (0, 1)))).split())
    assert "`a` 2, `b` at most 1, `c` 3 of 10 seeds at 2; without a fault, 1 of 10 seeds report one" in text


@pytest.mark.parametrize("page", ["# x\n\n<!-- power -->\n\n## Parameters\n", "# x\n\n## Parameters\n"])
def test_the_picture_is_put_once_and_replaced(page):
    first, second = found_of(("a", (0, 10)), (None, (0,))), found_of(("b", (10, 10)), (None, (0,)))
    once = shown(page, first)
    assert once.count("power/law.svg") == 1
    assert once.index("power/law.svg") < once.index("## Parameters")
    assert shown(once, first) == once
    assert sentence(first) not in shown(once, second)
    assert sentence(second) in shown(once, second)
    assert shown(once, second).endswith("\n\n## Parameters\n")


def test_fewer_seeds_at_large_sizes():
    assert [seeds_at(each, 20) for each in (1024, 2048, 4096)] == [20, 10, 5]


def test_a_chart_puts_shares_between_its_lines():
    root = ElementTree.fromstring(chart("a < b", [Curve("x", ((16, 0.0), (64, 1.0))), Curve("y", ((32, 0.5),))], "z"))
    places = [(float(each.get("cx")), float(each.get("cy"))) for each in root.findall(f"{SVG}circle")]
    (left, bottom), (right, top), (middle, half) = places
    assert (left, middle, right) == (52, 236, 420)
    assert (top, half, bottom) == (34, 140, 246)
