"""The packaged suites of structured outputs and tools: every cell is certified, or a finding with a name."""

import pytest

from .packaged import verdicts
from .setting import ROOT

pytestmark = pytest.mark.vllm

COLUMNS = [f"{method}-t{t}" for method in ("ngram", "draft", "drawn", "eagle") for t in (0, 1)]
PAGE = ROOT / "docs" / "how-to" / "audit-vllm.md"


@pytest.fixture(scope="module")
def structured(tmp_path_factory):
    return verdicts(tmp_path_factory.mktemp("structured"), "structured")


@pytest.fixture(scope="module")
def xgrammar(tmp_path_factory):
    return verdicts(tmp_path_factory.mktemp("xgrammar"), "structured-xgrammar")


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return verdicts(tmp_path_factory.mktemp("tools"), "tools")


def others(found):
    return {key: each["summary"] for key, each in found.items() if each["verdict"] != "certified"}


@pytest.mark.parametrize("library", ["grammars", "xgrammar"])
def test_every_kind_of_grammar_is_certified_by_every_way_to_draft(library, request):
    code, found = request.getfixturevalue({"grammars": "structured"}.get(library, library))
    assert others(found) == {}
    assert code == 0
    assert {arm for arm, _ in found} == {f"{column}-{library}" for column in COLUMNS}


def test_calls_are_those_of_the_target_alone(tools):
    code, found = tools
    assert others(found) == {}
    assert code == 0
    assert {arm for arm, _ in found} == {f"{column}-tools" for column in COLUMNS}


def test_forbidden_drawn_drafts_bend_the_law(tmp_path):
    """The token in the place of a dropped draft comes from p instead of the residual; masks and answers are right."""
    code, found = verdicts(tmp_path, "forbidden")
    assert code == 1
    assert {check for (_, check), each in found.items() if each["verdict"] != "certified"} == {"law"}
    law = found["forbidden-drafts", "law"]
    assert law["verdict"] == "fault"
    assert any("has no residual mass" in each["message"] for each in law["findings"])


def cell(checks):
    faults = sorted(check for check, each in checks.items() if each["verdict"] == "fault")
    return f"finding: {', '.join(faults)}" if faults else "certified"


def test_the_pages_table_says_what_the_runs_found(structured, xgrammar, tools):
    found = {**structured[1], **xgrammar[1], **tools[1]}
    arms = {arm: cell({check: each for (name, check), each in found.items() if name == arm}) for arm, _ in found}
    page = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        name, *row = [part.strip() for part in line.strip("|").split("|")]
        if name.startswith("`") and len(row) == len(COLUMNS):
            page |= {f"{column}-{name.strip('`')}": text for column, text in zip(COLUMNS, row, strict=True)}
    assert page == arms
