"""Every suite of `suites/known_bad` breaks every arm on purpose, and fails, here over scripted models where these show
the fault.
"""

import json
from pathlib import Path

import pytest

from engine import faults
from tests.audit.invoke import invoke

FOLDER = Path(__file__).parents[3] / "suites" / "known_bad"
SUITES = sorted(FOLDER.glob("*.yaml"))
AS_SCRIPTED = {
    "bundled:target": "scripted:1",
    "bundled:draft": "scripted:2",
    "../prompts": str(FOLDER.parent / "prompts"),
    "batch_size: 8": "batch_size: 8\nbackend: scripted",
}


def scripted(suite, folder, broken=True):
    """A copy of the suite with its faults or without, over scripted models unless the fault needs weights."""
    lines = suite.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if broken or not line.strip().startswith("fault:"))
    weights = faults.load(suite.stem).scenario.models == "bundled"
    changes = {"../prompts": AS_SCRIPTED["../prompts"]} if weights else AS_SCRIPTED
    for ours, theirs in changes.items():
        assert ours in text, f"{suite.name}: {ours}"
        text = text.replace(ours, theirs)
    copy = folder / suite.name
    copy.write_text(text, encoding="utf-8")
    return copy


def run(suite, folder):
    results = folder / "results.json"
    done = invoke("run", str(suite), "--store", str(folder / "audit.db"), "--results", str(results))
    return done, json.loads(results.read_text(encoding="utf-8"))


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_a_known_bad_suite_names_its_fault_and_fails(suite, tmp_path):
    done, results = run(scripted(suite, tmp_path), tmp_path)
    assert done.exit_code == 1, done.output
    candidates = [arm for arm in results["run"]["arms"] if arm["kind"] == "candidate"]
    assert {arm["effective"]["fault"] for arm in candidates} == {suite.stem}
    assert suite.stem in faults.REGISTRY


@pytest.mark.parametrize("suite", SUITES, ids=lambda path: path.stem)
@pytest.mark.slow
def test_without_its_fault_no_claim_is_broken(suite, tmp_path):
    done, results = run(scripted(suite, tmp_path, broken=False), tmp_path)
    assert done.exit_code in (0, 3), done.output
    assert "fault" not in {check["verdict"] for check in results["checks"]}
