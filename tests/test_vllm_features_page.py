"""The tables of vLLM's features: what the page shows is what the kept results say, and no cell is silent."""

import json

import pytest

from docs.tools.vllm_features_page import METHODS, NUMBERS, PAGE, ROOT, SUITES, TABLES, arms_of, cell, table, written


@pytest.fixture(scope="module")
def numbers():
    return json.loads(NUMBERS.read_text(encoding="utf-8"))


def check(verdict, summary="", name="law"):
    return {"check": name, "verdict": verdict, "summary": summary}


def test_the_page_shows_the_kept_results(numbers):
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, numbers) == page, "python -m docs.tools.vllm_features_page RESULTS"


@pytest.mark.parametrize("suite", SUITES)
def test_every_result_has_an_arm(suite, numbers):
    assert set(numbers[suite]) == set(arms_of(suite))
    assert not [text for text in numbers[suite].values() if text.startswith("undecided")]


@pytest.mark.parametrize("name", TABLES)
def test_no_cell_is_silent(name, numbers):
    rows = [line for line in table(name, numbers).splitlines() if line.startswith("| ")]
    cells = [text.strip() for row in rows for text in row.strip("|").split("|")]
    assert len(cells) == len(rows) * (1 + 2 * len(METHODS))
    assert all(cells)
    assert "untried" not in cells


def test_a_cell_says_what_the_checks_found():
    good = check("certified")
    refused = check(
        "certified", "all 0 requests were answered, at most 0.3 are not; 9 refused, which the suite allows: no"
    )
    assert cell([good, good]) == "certified"
    assert cell([good, check("fault", name="seed")]) == "finding: seed"
    assert cell([refused]) == "refused: no"
    assert cell([refused, check("fault", name="liveness")]) == "finding: liveness"
    assert cell([good, check("inconclusive")]) == "undecided: law inconclusive"
    some = check(
        "certified", "all 3 requests were answered, at most 0.3 are not; 9 refused, which the suite allows: no"
    )
    assert cell([some]) == "certified"


def test_every_suite_of_the_page_is_run_by_a_test():
    names = ("features", "features_engine", "adapters")
    tests = "".join((ROOT / "tests" / "vllm" / f"test_{name}.py").read_text() for name in names)
    assert [suite for suite in SUITES if f'"{suite}"' not in tests] == []
