"""The end of a run fits on a screen, and says the same words as the kept ones."""

import json

import pytest

from tests.audit.invoke import invoke
from tests.audit.terminal.run_endings import ENDINGS, HOME, endings, suite_file

pytestmark = pytest.mark.medium
MOST = 25
"""Lines for three arms."""


@pytest.mark.parametrize("name", ENDINGS)
def test_the_end_of_a_run(tmp_path, name):
    for width, text in endings(name, tmp_path).items():
        lines = text.splitlines()
        assert text == (HOME / f"{name}-{width}.txt").read_text(encoding="utf-8")
        assert len(lines) <= MOST
        # a command stands on one line, so that it can be copied whole
        assert all(len(line) <= width for line in lines if "audit " not in line)


def test_as_json_stdout_is_the_results_and_nothing_else(tmp_path):
    path, results = suite_file(tmp_path, prompts=1), tmp_path / "results.json"
    store = ("--store", str(tmp_path / "audit.db"), "--results", str(results))
    done = invoke("run", str(path), "--json", "--policy", "standard", *store)
    assert json.loads(done.stdout) == json.loads(results.read_text(encoding="utf-8"))
    assert "under policy standard" in done.stderr
    part = invoke("run", str(path), "--json", "--shard", "1/2", *store)
    assert json.loads(part.stdout)["checks"] == []
