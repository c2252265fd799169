"""`audit run` on a GPU: the quickstart is certified there, and suites with planted faults fail."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from audit.cli import main

pytestmark = pytest.mark.gpu
SUITES = Path(__file__).parents[2] / "suites"
FAULTS = ("argmax_draft_soft_q", "greedy_accepts_top2", "first_draft_unverified", "siblings_share_full_q")


def run_on(device, suite, folder):
    """Exit code, output and results of a packaged suite whose models are put on a device."""
    text = (SUITES / suite).read_text()
    for role in ("target", "draft"):
        assert f"  {role}: bundled:{role}\n" in text
        text = text.replace(
            f"  {role}: bundled:{role}\n", f'  {role}: {{source: "bundled:{role}", device: {device}}}\n'
        )
    for written in ("prompts: ../prompts/", "prompts: prompts/"):
        text = text.replace(written, f"prompts: {SUITES / 'prompts'}/")
    path, results = folder / "suite.yaml", folder / "results.json"
    path.write_text(text)
    command = ["run", str(path), "--store", str(folder / "gpu.db"), "--results", str(results)]
    done = CliRunner().invoke(main, command)
    return done, json.loads(results.read_text())


def test_the_quickstart_is_certified(device, tmp_path):
    done, results = run_on(device, "quickstart.yaml", tmp_path)
    assert done.exit_code == 0, done.output
    assert f'"device": "{device}"' in json.dumps(results)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, device, tmp_path):
    done, _ = run_on(device, f"known_bad/{fault}.yaml", tmp_path)
    assert done.exit_code == 1, done.output
