"""The packaged suites on the real engine, and faults that are planted beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ort
ROOT = Path(__file__).parents[2]
TIMEOUT = 1500


def verdicts(out, suite):
    """The exit code, and verdicts and findings by arm and check."""
    results = out / "results.json"
    command = [str(Path(sys.executable).with_name("audit")), "run", str(suite)]
    done = subprocess.run(
        [*command, "--store", f"sqlite:///{out / 'audit.db'}", "--results", str(results)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode in (0, 1, 3), done.stderr[-4000:]
    checks = json.loads(results.read_text(encoding="utf-8"))["checks"]
    return done.returncode, {(each["arm"], each["check"]): each for each in checks}


def test_greedy_decoding_is_certified(tmp_path):
    code, found = verdicts(tmp_path, "suites/onnxruntime/greedy.yaml")
    assert {key: each["verdict"] for key, each in found.items() if each["verdict"] != "certified"} == {}
    assert {arm for arm, _ in found} == {"draft-model", "ngram"}
    assert code == 0
