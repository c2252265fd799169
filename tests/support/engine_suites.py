"""Packaged suites on a real engine, run by the command line in this environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT = 1500


def verdicts(out, suite, *more):
    """The exit code, and verdicts and findings by arm and check."""
    results = out / "results.json"
    command = [str(Path(sys.executable).with_name("audit")), "run", str(suite), *more]
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
    return done.returncode, {(check["arm"], check["check"]): check for check in checks}


def uncertified(judged):
    return {key: check["verdict"] for key, check in judged.items() if check["verdict"] != "certified"}
