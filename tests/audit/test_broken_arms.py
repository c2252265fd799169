"""An arm that is broken on purpose is marked wherever its name is printed, and has a field of its own in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audit.api.reading import StoreView
from audit.suite.loader import load_suite
from audit.sweep.choice import Advice, MedianInterval, Recommendation
from audit.sweep.report import document, heading
from audit.sweep.sweep import ArmSweep, Sweep
from tests.audit.invoke import invoke

FAULT = "accepts_everything"
MARK = f"broken (broken on purpose: {FAULT})"
SUITE = f"""\
version: 1
name: marked
backend: scripted
models: {{target: "scripted:1", draft: "scripted:2"}}
workloads: [{{name: chat, prompts: "suites:prompts/chat.jsonl", limit: 1}}]
sampling: {{max_new_tokens: 4, temperature: 1.0}}
arms:
  - {{name: clean, proposer: {{kind: ngram, gamma: 2}}, verifier: chain, checks: [accounting]}}
  - {{name: broken, proposer: {{kind: ngram, gamma: 2}}, verifier: chain, checks: [accounting], fault: {FAULT}}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the suite, the store of its run and the run's output."""
    made = tmp_path_factory.mktemp("marked")
    (made / "suite.yaml").write_text(SUITE)
    store = ("--store", str(made / "audit.db"), "--results", str(made / "results.json"))
    (made / "summary").write_text(invoke("run", str(made / "suite.yaml"), *store).stdout)
    (made / "output").write_text(invoke("run", str(made / "suite.yaml"), "-v", *store).stdout)
    return made


def rows(text: str) -> list[str]:
    """The lines of tables that begin with the arm."""
    return [line for line in text.splitlines() if line.startswith("broken")]


def test_the_tables_of_run_show_and_plan_mark_every_row(folder):
    outputs = {
        "run": (folder / "output").read_text(),
        "show": invoke("show", "--store", str(folder / "audit.db")).stdout,
        "plan": invoke("plan", str(folder / "suite.yaml"), "--store", str(folder / "audit.db")).stdout,
    }
    for name, text in outputs.items():
        assert len(rows(text)) == (3 if name == "show" else 2), name  # show has a table of scopes too
        assert all(line.startswith(MARK) for line in rows(text)), name
        assert "clean (" not in text


def test_the_summary_of_a_run_names_them(folder):
    assert f"\nbroken on purpose: broken ({FAULT})\n" in (folder / "summary").read_text()


def test_a_report_is_not_attached_silently(folder):
    report = folder / "report.json"
    report.write_text("{}")
    done = invoke("attach", "latest", str(report), "--store", str(folder / "audit.db"))
    assert [line for line in done.stdout.splitlines() if line.startswith("arm ")] == [f"arm        {MARK}"]


def test_documents_keep_the_name_and_have_a_field(folder):
    results = json.loads((folder / "results.json").read_text())
    planned = json.loads(invoke("plan", str(folder / "suite.yaml"), "--json", "--store", str(folder / "no.db")).stdout)
    notebook = StoreView(str(folder / "audit.db")).run("latest").arms()
    wanted = {"broken": FAULT, "clean": None}
    for arms, key in ((results["run"]["arms"], "name"), (planned["arms"], "arm"), (notebook, "arm")):
        found = {arm[key]: arm["fault"] for arm in arms}
        assert {name: found[name] for name in wanted} == wanted


def test_a_sweep_marks_its_heading_and_its_document(folder):
    arm = load_suite(folder / "suite.yaml").arms[1]
    once = MedianInterval(1.0, 1.0, 1.0, 0.5)
    swept = ArmSweep(arm, 1, once, (), Recommendation(Advice.PLAIN, 2, once, ()), {})
    assert heading(swept).startswith(f"{MARK}: ngram, chain, ")
    (written,) = document(Sweep(load_suite(folder / "suite.yaml"), 1, 1, {}, (swept,)))["arms"]
    assert (written["name"], written["fault"]) == ("broken", FAULT)
