"""The page of planned trees: made from a run, what the default rates rest on, and its intervals."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

from engine.proposers.options import OPTIONS, rates_of
from engine.proposers.tree_planning import best_shape, chain_shape, expected_tokens, k_ary_shape
from tests.bench.sequoia import PAGE, Arm, Ran, difference, main

pytestmark = pytest.mark.slow


def measured_rates():
    """The vectors of the page's last section, which is the small pair at temperature 1."""
    (*_, text) = re.findall(r'`rates: "([^"]+)"`', PAGE.read_text(encoding="utf-8"))
    return rates_of(text)


def test_the_page_is_made_from_a_run(tmp_path):
    out = tmp_path / "page.md"
    options = ["--out", str(out), "--prompts", "2", "--tokens", "12", "--pair", "small", "--size", "6"]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 0, result.output
    rows = [line.split(" | ") for line in out.read_text().splitlines() if re.match(r"\| (sequoia|chain|\d-ary)", line)]
    assert len(rows) == 2 * 6
    assert all(float(row[2]) <= float(rows[6 * (number // 6)][2]) for number, row in enumerate(rows))
    assert all(1 <= float(row[4]) <= 7 for row in rows)


def test_the_default_rates_are_the_measured_ones():
    rounded = [[round(rate, 2) for rate in level] for level in measured_rates()]
    assert rates_of(OPTIONS["sequoia"]["rates"].default) == tuple(map(tuple, rounded))


@pytest.mark.parametrize("size", [15, 31])
def test_on_the_measured_rates_the_planned_tree_is_the_best(size):
    rates = measured_rates()
    best = best_shape(rates, size, 12).expected_tokens
    for rival in (chain_shape(size), *(k_ary_shape(k, size) for k in (2, 3, 4))):
        assert best > expected_tokens(rival, rates) + 0.1


def ran(tokens, steps):
    return Ran(Arm("", chain_shape(1)), 0.0, 0.0, np.array(tokens), np.array(steps))


def test_a_difference_is_paired_by_prompt():
    random = np.random.default_rng(1)
    steps = random.integers(5, 20, 60)
    tokens = steps * random.integers(1, 5, 60)
    middle, low, high = difference(ran(tokens + steps, steps), ran(tokens, steps))
    assert (middle, low, high) == (pytest.approx(1.0), pytest.approx(1.0), pytest.approx(1.0))
    noise = random.permutation(60)
    middle, low, high = difference(ran(tokens[noise], steps[noise]), ran(tokens, steps))
    assert middle == pytest.approx(0.0)
    assert low < 0 < high
