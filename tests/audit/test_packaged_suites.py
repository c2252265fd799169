"""The packaged suites of our own engine pass as they are and as planned, and ask for every situation of their arms."""

from pathlib import Path

import pytest
import yaml

from tests.audit.agreement import misses, run_seconds, with_trial

SUITES = Path(__file__).parents[2] / "suites"
OURS = ("quickstart", "structured", "safety", "tools", "long_context")


@pytest.mark.slow
@pytest.mark.parametrize("suite", OURS)
def test_a_packaged_suite_passes_as_planned(tmp_path, suite):
    ended = with_trial(suite, tmp_path)
    assert (ended.codes, misses(ended.plan, ended.results)) == ((0, 0), {})
    print(f"{suite}: planned {ended.plan['seconds']:.0f} s, took {run_seconds(ended.results):.0f} s")


@pytest.mark.parametrize("suite", OURS)
def test_it_waives_no_situation(suite):
    content = yaml.safe_load((SUITES / f"{suite}.yaml").read_text(encoding="utf-8"))
    assert not [rule for rule in (content, *content["arms"]) if "waive" in rule.get("coverage", {})]
