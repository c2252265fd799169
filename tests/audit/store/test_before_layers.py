"""A store of the commit before the folders became layers opens, verifies and judges to the same verdicts.

`before_layers/` holds the store (xz), its suite, and a report with the run's evidence, all written by that commit.
"""

from __future__ import annotations

import dataclasses
import lzma
from pathlib import Path

import pytest

from audit.evidence.coverage.rule import CoverageRule
from audit.evidence.records import ArmKind
from audit.evidence.verdicts import Verdict
from audit.runs.arms import plan_arms
from audit.runs.judge import exit_code, judge
from audit.store import Store, migrate
from audit.suite.loader import load_suite
from tests.audit.invoke import invoke
from tests.support.observers import Silent

FOLDER = Path(__file__).parent / "before_layers"
NUMBERS = ("verdict", "n", "statistic", "p_value", "effect", "bound", "margin")
"""What a check decides by. Its messages are left out: their wording may improve."""


@pytest.fixture
def url(tmp_path):
    path = tmp_path / "before.db"
    path.write_bytes(lzma.decompress((FOLDER / "before.db.xz").read_bytes()))
    migrate.upgrade(str(path))
    return str(path)


def arms_without_floors():
    """The suite's arms as that commit had them: without floors of coverage, without reading the answers again."""
    suite = load_suite(FOLDER / "suite.yaml")
    free = tuple(dataclasses.replace(arm, coverage=CoverageRule(least=0)) for arm in suite.arms)
    planned = plan_arms(dataclasses.replace(suite, arms=free))
    return tuple(arm for arm in planned if arm.kind is not ArmKind.REREAD)


def results(store, run):
    return {
        (check.arm, check.check): {name: getattr(check, name) for name in NUMBERS} | {"found": len(check.findings)}
        for check in store.checks(run)
    }


@pytest.mark.medium
def test_every_hash_of_it_holds(url):
    result = invoke("db", "check", "--store", url)
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.medium
def test_judged_again_it_has_the_same_verdicts_and_numbers(url):
    with Store.open(url, create=False) as store:
        run = store.resolve("latest")
        before = results(store, run)
        judge(arms_without_floors(), store, run, Silent())
        after = results(store, run)
        assert len({check.arm for check in store.checks(run)}) == 4
        assert exit_code(store.checks(run)) == store.load_run(run).exit_code == 1
    assert {verdict["verdict"] for verdict in before.values()} == set(Verdict)
    # the texts of that store were never read again, so its rows are no longer compared
    assert {key for key in after if after[key] != before[key]} <= {key for key in before if key[1] == "bitwise"}
    assert {after[key]["verdict"] for key in after if key[1] == "bitwise"} == {Verdict.NOT_RUN}


@pytest.mark.medium
def test_the_command_gives_its_verdicts_without_its_suite(url):
    """Its run states no checks, floors or companions: the store's suite and results do."""
    result = invoke("judge", "--store", url, "--wide")
    (line,) = [line for line in result.stdout.splitlines() if "->" in line]
    # the texts of that store were never read again, so its rows are no longer compared
    assert line.split(";")[0].split() == ["greedy", "bitwise", "verdict", "inconclusive", "->", "not_run"]
    assert "19 of 20 results are as before" in result.stdout
    assert result.exit_code == 1
    assert "this version has no" not in result.stderr


@pytest.mark.medium
def test_it_is_shown_and_the_gate_blocks_it(url):
    shown = invoke("show", "latest", "--store", url)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "argmax_draft_soft_q" in shown.stdout
    gated = invoke("gate", "latest", "--policy", "standard", "--store", url)
    assert gated.exit_code == 1
    assert "known_bad: arm broken is broken on purpose" in gated.stdout


@pytest.mark.medium
def test_a_report_that_carries_its_evidence_is_verified(url):
    result = invoke("verify", str(FOLDER / "report.audited.json"), "--store", url)
    assert (result.exit_code, result.stderr) == (0, "")
