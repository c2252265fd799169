"""A broken law is explained in words where one alternative explains it, and only there."""

import math
from dataclasses import replace

import pytest

from audit.api.running import Quiet
from audit.evidence.verdicts import Verdict
from audit.report.tables.verdicts import MECHANISMS, mechanism_lines, mechanism_of
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.selftest.default_suite import default_suite
from audit.selftest.scenarios import clean_arms
from audit.stats.anytime.alternatives import NAMES
from audit.stats.anytime.token_mixture import DIRECTIONS
from audit.store import Store
from tests.audit.gate.runs import check

EVERY = (*NAMES, *(name for family in DIRECTIONS for name in family.names))


def test_every_alternative_has_words_and_all_words_an_alternative():
    told = {mechanism_of(name).partition(" (")[0] for name in EVERY}
    assert told == set(MECHANISMS.values())
    assert mechanism_of("bonus: previous row 0.5") == "tokens were drawn from the row before theirs (bonus)"


@pytest.mark.parametrize(
    ("verdict", "share", "log_e", "lines"),
    [
        (Verdict.FAULT, 0.9, 20.0, ["chain: law: as if tokens were emitted twice"]),
        (Verdict.FAULT, 0.3, 20.0, []),
        (Verdict.FAULT, 0.9, math.log(900), []),
        (Verdict.CERTIFIED, 0.9, 20.0, []),
    ],
)
def test_an_alternative_explains_a_fault_that_it_leads(verdict, share, log_e, lines):
    leader = {"name": "repeat of the previous token 0.2", "share": share, "log_e": log_e}
    judged = check("chain", "law", verdict)
    assert list(mechanism_lines([replace(judged, details={"alternatives": [leader]})])) == lines
    assert list(mechanism_lines([judged])) == []


@pytest.mark.medium
def test_a_run_that_keeps_every_draft_says_so(tmp_path):
    clean = next(arm for arm in clean_arms(20) if (arm.family, arm.sampling) == ("chain", "T=1"))
    with Store.open(str(tmp_path / "audit.db"), create=True) as store:
        done = run(prepare(default_suite(clean.scenario, "accepts_everything", clean.seed, 512)), store, Quiet())
        said = list(mechanism_lines(store.checks(done.run)))
    assert any(line.endswith(f"law: as if {MECHANISMS['draft leak']}") for line in said), said
