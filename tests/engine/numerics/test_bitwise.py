"""Speculation leaves the bits of the logits as they are, in the modes that promise it."""

import pytest

from tests.support.tiers import slow_unless

from .bitwise import LENGTH, Case, compare, refused

MODES = {
    "fixed": ("draft_model", "ngram"),
    "tiled": ("draft_model", "ngram", "trees"),
    "ordered": ("draft_model", "ngram", "trees"),
    "exact": ("draft_model",),
}
HONEST = [
    Case(mode, dtype, proposer, threads, rows)
    for mode, proposers in MODES.items()
    for dtype in ("float32", "bfloat16")
    for proposer in proposers
    for threads in (1, 2)
    for rows in (1, 8)
]
QUICK = [case for case in HONEST if case.threads == 1 and case.rows == 8]
DAILY = [Case("fixed", "float32", "ngram", 1, 8), Case("ordered", "float32", "trees", 1, 8)]
HEAVY = 34
"""Requests per case, so that the four ways of running make at least 20 000 positions."""


@pytest.mark.medium
@pytest.mark.parametrize("case", slow_unless(QUICK, DAILY), ids=str)
def test_no_bit_differs(case):
    if refused(case.mode, case.dtype, case.threads):
        pytest.skip("this machine's kernels break the promise, and the mode is refused by name")
    found = compare(case, count=4)
    assert found.differing == 0
    assert found.same_tokens
    assert found.positions == 4 * LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_fast_mode_does_differ(dtype):
    found = compare(Case("fast", dtype, "draft_model"), count=2)
    assert found.differing > 0.5 * found.positions


@pytest.mark.slow
def test_trees_differ_in_the_fixed_mode():
    assert compare(Case("fixed", "float32", "trees"), count=4).differing > 0


@pytest.mark.heavy
@pytest.mark.parametrize("case", HONEST, ids=str)
def test_no_bit_differs_in_many_positions(case):
    if refused(case.mode, case.dtype, case.threads):
        pytest.skip("this machine's kernels break the promise, and the mode is refused by name")
    found = compare(case, count=HEAVY)
    assert found.differing == 0
    assert found.same_tokens
    assert found.positions == HEAVY * LENGTH
