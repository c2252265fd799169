"""The simulation behind the certificate's coverage, in a small form."""

import re

import pytest
from click.testing import CliRunner

from tests.bench.certificate import LENIENT, NOISES, WIDTHS, main

pytestmark = pytest.mark.slow


def test_coverage_and_width_are_printed():
    result = CliRunner().invoke(main, ["--arms", "40", "--positions", "500"])
    assert result.exit_code == 0, result.output
    rows = re.findall(r"noise +(\d+)/(\d+)", result.output)
    assert len(rows) == len(LENIENT) * len(NOISES)
    # 40 arms at 99 %: three misses have probability below 0.01
    assert sum(int(count) - int(covered) for covered, count in rows) <= 2
    widths = [float(each) for each in re.findall(r"(\S+) = \S+ \+ \S+$", result.output, re.MULTILINE)]
    assert len(widths) == len(WIDTHS)
    assert widths == sorted(widths, reverse=True)
    assert widths[-2] <= 0.002
