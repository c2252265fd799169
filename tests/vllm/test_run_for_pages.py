"""A small run of vLLM as a bundle, for the browser tests of the pages, which run in an environment without vLLM.

The bundle goes to `build/browser/vllm-small.zip`; `make test-browser` shows it where it is there.
"""

from __future__ import annotations

import pytest

from audit.store import Store
from tests.audit.invoke import invoke
from tests.support.engine_suites import audit

from .setting import ROOT

pytestmark = pytest.mark.vllm
BUNDLE = ROOT / "build" / "browser" / "vllm-small.zip"
TIMEOUT = 1800


def test_a_small_run_is_kept_as_a_bundle(tmp_path):
    store = tmp_path / "vllm.db"
    where = ("--store", str(store), "--results", str(tmp_path / "results.json"))
    done = audit("run", "tests/vllm/small.yaml", *where, timeout=TIMEOUT)
    # few tokens decide little, so the run may end undecided
    assert done.returncode in (0, 3), done.stderr[-4000:]
    with Store.open(str(store), create=False, read_only=True) as opened:
        run = opened.load_run(opened.resolve("latest"))
    assert {arm.effective.backend for arm in run.arms} == {"vllm"}
    assert run.arm("draft-model").counts.accepted > 0
    BUNDLE.parent.mkdir(parents=True, exist_ok=True)
    BUNDLE.unlink(missing_ok=True)
    assert invoke("export", run.ulid, "--store", str(store), "--out", str(BUNDLE)).exit_code == 0
