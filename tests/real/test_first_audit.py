"""A new user's first audit of a real model: eight chats, `audit init`, one run, a decision."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from audit.store import Store

from .smollm2 import make_folder

pytestmark = pytest.mark.real
CHATS = Path(__file__).with_name("chats.jsonl")
FOLDER = Path(sys.prefix) / "smollm2.gguf"


def audit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "audit", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The folder of a first audit, and what its run printed."""
    make_folder(FOLDER)
    folder = tmp_path_factory.mktemp("first")
    written = audit(folder, "init", str(FOLDER), "--prompts", str(CHATS))
    assert written.returncode == 0, written.stderr
    return folder, audit(
        folder, "run", "smollm2.yaml", "--workers", "2", "--store", "audit.db", "--results", "results.json"
    )


def test_the_first_run_decides(first):
    folder, done = first
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((folder / "results.json").read_text())
    counts = [arm["counts"] for arm in results["run"]["arms"] if arm["kind"] == "candidate"]
    own, directed = (sum(one[name] for one in counts) for name in ("output", "directed_output"))
    assert 0 < directed <= own / 2
    assert "waive" not in (folder / "smollm2.yaml").read_text()


@pytest.mark.parametrize("fault", ["accepts_everything", "temperature_ignored_on_drafted_rows", "bonus_wrong_row"])
def test_a_broken_engine_fails(first, fault):
    """The sampled arm is broken, and its baseline is that of the clean run."""
    folder, _ = first
    text = (folder / "smollm2.yaml").read_text()
    path = folder / f"{fault}.yaml"
    path.write_text(text.replace("    verifier: chain", f"    verifier: chain\n    fault: {fault}"))
    with Store.open(str(folder / "audit.db"), create=False, read_only=True) as store:
        clean = next(run.ulid for run in store.list_runs(10) if run.exit_code == 0)
    done = audit(folder, "run", path.name, "--baseline", clean, "--store", "audit.db", "--results", f"{fault}.json")
    assert done.returncode == 1, done.stdout + done.stderr
