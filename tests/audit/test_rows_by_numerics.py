"""README's suite under numerics that promise bits, no check named: no fault of the target's rows ends with a pass."""

import pytest

from tests.support.readme_suite import FAULTS, Shape, audited
from tests.support.tiers import slow_unless

NUMERICS = ("ordered", "tiled", "fixed")
DAILY = [("ordered", FAULTS[0]), ("tiled", FAULTS[4]), ("fixed", FAULTS[5])]


def by_default(folder, numerics, fault=None):
    """The run, with a clean greedy arm beside the sampled one."""
    models = {"target": {"source": "bundled:target", "numerics": numerics}, "draft": "bundled:draft"}
    arm = {"fault": fault} if fault else {}
    return audited(folder, Shape(models, arm=arm, beside=True))


@pytest.mark.medium
@pytest.mark.parametrize("numerics", slow_unless(NUMERICS, ["ordered"]))
def test_a_clean_run_is_looked_at_twice(tmp_path, numerics):
    """It is undecided for its size: fewer tokens than the law needs, and short prompts only."""
    done = by_default(tmp_path, numerics)
    assert done.by("fault") == done.by("fault", "greedy") == set(), done.told
    assert done.checks["rejection"]["second_accounts"]["verdict"] == "certified"
    assert done.checks["rejection"]["second_accounts"]["details"]["looked_at_twice"]["target rows"] == ["bitwise"]
    assert done.code == 3
    assert "every row of logits is the target's own" in done.checks["rejection"]["bitwise"]["summary"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("numerics", "fault"), slow_unless([(how, fault) for how in NUMERICS for fault in FAULTS], DAILY)
)
def test_no_fault_of_the_rows_ends_with_a_pass(tmp_path, numerics, fault):
    done = by_default(tmp_path, numerics, fault)
    assert done.code == done.alone() == 1, done.told
    assert "bitwise" in done.by("fault"), done.told
