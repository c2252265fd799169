"""The comparison of two-sample tests runs, with the peer or without."""

import json

import pytest
from click.testing import CliRunner

from tests.bench.two_sample import CASES, OURS, main

pytestmark = pytest.mark.slow


def test_the_comparison_runs(tmp_path):
    out = tmp_path / "two_sample.json"
    result = CliRunner().invoke(main, ["--quick", "--json", str(out)])
    assert result.exit_code == 0, result.output
    tables = json.loads(out.read_text())
    assert [row["case"] for row in tables["rejections"]] == list(CASES)
    assert {row["statistic"] for row in tables["seconds"]} == set(OURS)
