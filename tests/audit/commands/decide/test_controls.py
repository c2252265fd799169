"""The mapping of checks to clauses: complete, current on its page, and worded as evidence."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import schemas
from audit import checks
from audit.report.statements.controls import WORDS, load_controls
from docs.tools.controls_page import page
from tests.audit.gate.runs import stored_run
from tests.audit.invoke import invoke

ROOT = Path(__file__).resolve().parents[4]
CLAIMED = re.compile(r"complian|comply|complies|conforms to", re.IGNORECASE)


def test_the_file_follows_its_schema_and_every_registered_check_is_mapped():
    data = json.loads(files("suites").joinpath("controls.json").read_text("utf-8"))
    Draft202012Validator(schemas.load("controls")).validate(data)
    clauses = [clause for framework in load_controls().frameworks for clause in framework.clauses]
    assert [clause.id for clause in clauses if not (clause.records or clause.checks)] == []
    mapped = {name for clause in clauses for name in clause.checks}
    unmapped = set(load_controls().unmapped)
    assert mapped & unmapped == set()
    assert mapped | unmapped == set(checks.REGISTRY)
    assert {name for clause in clauses for name in clause.records} == set(WORDS)
    assert set(schemas.load("controls")["$defs"]["clause"]["properties"]["records"]["items"]["enum"]) == set(WORDS)


def test_the_page_is_current_and_says_evidence():
    assert (ROOT / "docs" / "controls.md").read_text("utf-8") == page(), "run: make docs"
    shown = [invoke("controls", "--format", form).stdout for form in ("table", "markdown", "json")]
    assert [text for text in (*shown, page()) if CLAIMED.search(text)] == []
    assert "evidence for" in shown[0]


@pytest.mark.medium
def test_a_run_has_its_own_results_beside_each_clause(tmp_path: Path):
    url = stored_run(tmp_path)
    document = json.loads(invoke("controls", "latest", "--format", "json", "--store", url).stdout)
    clauses = {clause["clause"]: clause for framework in document["frameworks"] for clause in framework["clauses"]}
    tested = clauses["Annex IV 2(g)"]["evidence"]
    assert tested["checks"]["law"] == "1 certified"
    assert tested["checks"]["anchor"] == "no result"
    assert tested["records"]["decision"] == "no decision"
    assert tested["records"]["requests"].startswith("1 requests of 1 arms, record root ")
    table = invoke("controls", "latest", "--store", url).stdout
    assert "law: 1 certified" in table
    assert CLAIMED.search(table) is None
    assert all(clause["read"] and clause["source"] for clause in clauses.values())


def test_an_unknown_run_is_a_usage_error(tmp_path: Path):
    result = invoke("controls", "nonsense", "--store", str(tmp_path / "none.db"))
    assert (result.exit_code, result.stdout) == (2, "")
