"""Runs a packaged suite of vLLM in a process of its own."""

import json

from docs.tools.vllm_features_page import NUMBERS, cells
from tests.support.engine_suites import audit

TIMEOUT = 1800


def verdicts(out, suite):
    """Verdicts, summaries and findings by arm and check, and the exit code."""
    results = out / "results.json"
    store = f"sqlite:///{out / 'audit.db'}"
    where = ("--store", store, "--results", str(results))
    done = audit("run", f"suites/vllm/{suite}.yaml", *where, timeout=TIMEOUT)
    assert done.returncode in (0, 1, 3), done.stderr[-4000:]
    assert done.stderr.startswith("starting vLLM (")
    checks = json.loads(results.read_text(encoding="utf-8"))["checks"]
    return done.returncode, {(each["arm"], each["check"]): each for each in checks}


def assert_as_the_page_says(out, suite):
    """Runs the suite; every cell is the one that the page keeps."""
    code, found = verdicts(out, suite)
    kept = json.loads(NUMBERS.read_text(encoding="utf-8"))[suite]
    assert cells({"checks": found.values()}) == kept
    assert code == (1 if any(cell.startswith("finding") for cell in kept.values()) else 0)
