"""Levels in words: exact where they are round, and never full certainty."""

from __future__ import annotations

import pytest

from audit.runs.interim_looks import share
from audit.stats.multiplicity import percent


@pytest.mark.parametrize(
    ("confidence", "text"),
    [
        (0.5, "50 %"),
        (0.9, "90 %"),
        (0.95, "95 %"),
        (0.99, "99 %"),
        (0.999, "99.9 %"),
        (0.001, "0.1 %"),
        (1.0 - 0.01 * share(1), "99.39 %"),
        (1.0 - 3e-6, "99.9997 %"),
        (1.0 - 1e-13, "more than 99.9999999999 %"),
        (1.0, "more than 99.9999999999 %"),
    ],
)
def test_a_level_keeps_two_digits_of_its_error_probability(confidence, text):
    assert percent(confidence) == text


def test_no_share_of_an_error_probability_reads_as_certainty():
    levels = [1.0 - alpha * share(look) for alpha in (0.05, 0.01, 1e-3, 1e-6, 1e-9) for look in range(1, 200)]
    assert all("100" not in percent(level) for level in levels)
    assert all(percent(level).removeprefix("more than ").startswith("9") for level in levels)
