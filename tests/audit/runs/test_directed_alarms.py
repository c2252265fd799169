"""Clean arms of every family whose runs add directed requests: alarms stay within the error that the checks state.

`audit selftest` judges the same families without directed requests. All tests together have two hundred arms, each test
two families.
"""

import pytest
from scipy.stats import binom

from audit.api.running import Quiet
from audit.evidence.verdicts import Verdict
from audit.runs.prepare import prepare
from audit.runs.runner import run
from audit.selftest.alarms import TOLERATED
from audit.selftest.default_suite import default_suite
from audit.selftest.scenarios import clean_arms
from audit.store import Store

pytestmark = pytest.mark.slow
PARTS, SIZE, TOKENS = 20, 10, 256
MOST = int(binom.isf(1e-3 / PARTS, SIZE, TOLERATED))
"""Alarms of a part; clean arms at the tolerated rate raise more in any part once in a thousand times."""


def alarms(folder, clean):
    """The checks that call a clean arm a fault, with their words."""
    path = folder / f"{clean.seed}.db"
    with Store.open(str(path), create=True) as store:
        done = run(prepare(default_suite(clean.scenario, None, clean.seed, TOKENS)), store, Quiet())
        faults = [
            f"{check.check}: {check.summary}" for check in store.checks(done.run) if check.verdict is Verdict.FAULT
        ]
        # sixteen short requests never meet every floor
        assert any(arm.counts.directed_output for arm in store.load_run(done.run).arms)
    path.unlink()
    return faults


@pytest.mark.parametrize("part", range(PARTS))
def test_clean_arms_raise_no_more_alarms_than_stated(tmp_path, part):
    arms = clean_arms(PARTS * SIZE)[part * SIZE : (part + 1) * SIZE]
    raised = {(arm.family, arm.sampling, arm.seed): faults for arm in arms if (faults := alarms(tmp_path, arm))}
    print(f"{len(raised)} of {len(arms)} arms raised an alarm: {raised}")
    assert len(raised) <= MOST
