"""The command beside a finding names the run, the request and the check, whatever characters they have."""

from __future__ import annotations

import shlex

import pytest

from audit.report.html.registry import source_of
from audit.report.html.sections import findings
from audit.store import Store
from tests.audit.report.html.runs import HOSTILE, StoredRuns, stored_runs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> StoredRuns:
    return stored_runs(f"sqlite:///{tmp_path_factory.mktemp('findings') / 'audit.db'}")


def test_a_fault_has_the_command_that_minimizes_it(made):
    with Store.open(made.url, create=False, read_only=True) as store:
        (fault,) = findings.read(source_of(store, made.judged)).checks
        (hostile,) = findings.read(source_of(store, made.hostile)).checks
    words = ["audit", "minimize", made.judged, "spec/case-1#0", "--check", "replay", "--store", made.url]
    assert shlex.split(fault.command) == words
    assert shlex.split(hostile.command)[3] == f"{HOSTILE}/{HOSTILE}#0"


def test_a_finding_about_all_requests_leaves_the_choice_to_the_command(made):
    with Store.open(made.url, create=False, read_only=True) as store:
        shown = findings.read(source_of(store, made.finished))
    pooled = next(one for one in shown.checks if one.check.check == "law")
    assert shlex.split(pooled.command)[2:4] == [made.finished, "--check"]
    assert next(one for one in shown.checks if one.check.check == "replay").command is None
