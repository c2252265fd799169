"""The packaged suites of our own engine pass as they are, and ask for every situation that their arms can meet."""

from pathlib import Path

import pytest
import yaml

from tests.audit.invoke import invoke

SUITES = Path(__file__).parents[2] / "suites"
OURS = ("quickstart", "structured", "safety", "tools", "long_context")


@pytest.mark.slow
@pytest.mark.parametrize("suite", OURS)
def test_a_packaged_suite_passes(tmp_path, suite):
    done = invoke("run", suite, "--store", str(tmp_path / "audit.db"), "--results", str(tmp_path / "results.json"))
    assert done.exit_code == 0, done.stdout


@pytest.mark.parametrize("suite", OURS)
def test_it_waives_no_situation(suite):
    content = yaml.safe_load((SUITES / f"{suite}.yaml").read_text(encoding="utf-8"))
    assert not [rule for rule in (content, *content["arms"]) if "waive" in rule.get("coverage", {})]
