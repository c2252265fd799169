"""The packaged suites of our own engine pass as they are and as planned, and ask for every situation of their arms."""

import json
from pathlib import Path

import pytest
import yaml

from tests.audit.agreement import misses, run_seconds
from tests.audit.invoke import invoke

SUITES = Path(__file__).parents[2] / "suites"
OURS = ("quickstart", "structured", "safety", "tools", "long_context")


@pytest.mark.slow
@pytest.mark.parametrize("suite", OURS)
def test_a_packaged_suite_passes_as_planned(tmp_path, suite):
    store, results = str(tmp_path / "audit.db"), tmp_path / "results.json"
    planned = invoke("plan", suite, "--trial", "--json", "--store", store)
    plan = json.loads(planned.stdout)
    done = invoke("run", suite, "--store", store, "--results", str(results))
    assert done.exit_code == 0, done.stdout
    document = json.loads(results.read_text())
    assert (planned.exit_code, misses(plan, document)) == (0, {})
    print(f"{suite}: planned {plan['seconds']:.0f} s, took {run_seconds(document):.0f} s")


@pytest.mark.parametrize("suite", OURS)
def test_it_waives_no_situation(suite):
    content = yaml.safe_load((SUITES / f"{suite}.yaml").read_text(encoding="utf-8"))
    assert not [rule for rule in (content, *content["arms"]) if "waive" in rule.get("coverage", {})]
