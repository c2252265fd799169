"""docs/engines.md: the page shows the kept verdicts, every kept arm is in a packaged suite, and no cell is silent."""

import json
import re

import pytest
import yaml

from docs.tools.engine_matrix import COLUMNS, NUMBERS, PAGE, ROOT, SERVED, SUITES, Judged, cell, compact, table, written


@pytest.fixture(scope="module")
def numbers():
    return json.loads(NUMBERS.read_text(encoding="utf-8"))


def verdict(word, check="law"):
    return Judged("greedy: arm", "draft_model", check, "law", word)


def test_the_page_shows_the_kept_verdicts(numbers):
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, numbers) == page, "python -m docs.tools.engine_matrix"
    assert compact(numbers) == NUMBERS.read_text(encoding="utf-8")
    changed = json.loads(json.dumps(numbers))
    entry = next(entry for entry in changed.values() if entry["verdicts"])
    entry["verdicts"][0][3] = "fault" if entry["verdicts"][0][3] == "certified" else "certified"
    assert written(page, changed) != page


@pytest.mark.medium
def test_every_run_is_of_a_packaged_suite_and_has_its_arms(numbers):
    packaged = {}
    for engine, patterns in SUITES.items():
        for path in (path for pattern in patterns for path in (ROOT / "suites").glob(pattern)):
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
            packaged[engine, document["name"]] = {arm["name"] for arm in document["arms"]}
    for run, entry in numbers.items():
        if entry["engine"].endswith(SERVED):
            # a suite that a probe wrote, or the packaged one at addresses of its own
            continue
        # a varied parameter or a part of a sweep follows the arm's name
        arms = {re.split("[./]", name)[0] for name in entry["methods"]}
        assert arms == packaged[entry["engine"], run]


def test_every_claim_has_a_column(numbers):
    claims = {claim for entry in numbers.values() for _arm, _check, claim, _verdict in entry["verdicts"]}
    shown = {claim for column in COLUMNS.values() for claim in column}
    assert claims - shown <= {"liveness", "cost"}


def test_no_cell_is_silent(numbers):
    rows = [line.strip("|").split("|") for line in table(numbers).splitlines()[2:]]
    assert rows
    assert all(len(row) == 2 + len(COLUMNS) and all(text.strip() for text in row) for row in rows)


def test_a_cell_says_the_worst_first():
    assert cell([]) == "no check"
    assert cell([verdict("certified")]) == "certified"
    assert cell([verdict("certified"), verdict("not_run", "anchor")]) == "not run: anchor"
    assert cell([verdict("inconclusive", "seed"), verdict("not_run")]) == "inconclusive: seed"
    assert cell([verdict("inconclusive"), verdict("fault", "seed"), verdict("fault")]) == "fault: law, seed"
