"""A new user's first audit of a real model: eight chats, `audit init`, one run, a decision; then with a draft of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from audit.store import Store
from tests.audit.agreement import misses

from .smollm2 import CACHE, CHATS, copy_model

pytestmark = pytest.mark.real
MODEL = Path(sys.prefix) / "smollm2.gguf"
MINUTES = 5
"""Of training; the page about drafts has what longer ones give."""
FAULTS = (
    *("accepts_everything", "first_draft_unverified", "last_draft_unverified", "always_accept_top1", "resample_from_p"),
    *("greedy_recovered_token", "bonus_not_warped", "bonus_repeats_token", "bonus_wrong_row", "target_rows_shifted"),
    *("target_not_warped_in_test", "temperature_ignored_on_drafted_rows", "drafted_rows_in_bfloat16"),
    *("positions_off_by_one", "prompt_end_read_twice", "kv_not_rolled_back", "rows_of_another_request"),
    *("rejected_token_leaks", "number_reused_across_positions", "seed_ignored"),
)


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # one thread for each of two workers
    environment = os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(CACHE)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def audit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "audit", *arguments, "--store", "audit.db")


class Audited:
    """A suite that `audit init` wrote, its plan, and its run."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.folder, self.suite = folder, folder / f"{name}.yaml"
        written = python(
            folder, "audit", "init", str(MODEL), "--prompts", str(CHATS), "--out", self.suite.name, *options
        )
        assert written.returncode == 0, written.stderr
        self.plan = json.loads(audit(folder, "plan", self.suite.name, "--json").stdout)
        self.done = audit(folder, "run", self.suite.name, "--workers", "2", "--results", f"{name}.json")
        self.results = json.loads((folder / f"{name}.json").read_text())

    def spent(self) -> list[int]:
        """Tokens of the candidates' own requests, and of the directed ones."""
        counts = [arm["counts"] for arm in self.results["run"]["arms"] if arm["kind"] == "candidate"]
        return [sum(one[name] for one in counts) for name in ("output", "directed_output")]


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """The audit of n-gram drafts."""
    copy_model(MODEL)
    return Audited(tmp_path_factory.mktemp("first"), "copied")


@pytest.fixture(scope="module")
def drafted(copied):
    """The audit of a draft that was made from the answers of that run."""
    run = f"run={copied.results['run']['ulid']}"
    texts = audit(copied.folder, "query", "texts", "--param", run, "--format", "jsonl", "--out", "texts.jsonl")
    assert texts.returncode == 0, texts.stderr
    options = ("--target", str(MODEL), "--data", "texts.jsonl", "--out", "draft", "--minutes", str(MINUTES))
    trained = python(copied.folder, "engine.train", "draft", *options)
    print(trained.stderr)
    assert trained.returncode == 0, trained.stderr
    return Audited(copied.folder, "drafted", "--draft", str(copied.folder / "draft"))


def test_the_first_run_decides_as_planned(copied):
    print(copied.done.stdout)
    assert copied.done.returncode == 0, copied.done.stdout + copied.done.stderr
    own, directed = copied.spent()
    assert 0 < directed <= own / 2
    assert "waive" not in copied.suite.read_text()
    assert misses(copied.plan, copied.results) == {}


def test_a_draft_of_minutes_decides_in_its_first_run_too(drafted):
    """Its drafts are seldom kept whole; directed requests go on from where one was."""
    print(drafted.done.stdout)
    assert drafted.done.returncode == 0, drafted.done.stdout + drafted.done.stderr
    own, directed = drafted.spent()
    assert 0 < directed <= own / 2
    assert "waive" not in drafted.suite.read_text()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_engine_fails(copied, fault):
    """The sampled arm is broken, and its baseline is that of the clean run."""
    suite = yaml.safe_load(copied.suite.read_text())
    suite["arms"] = [arm | {"fault": fault} for arm in suite["arms"] if arm["name"] == "sampled"]
    path = copied.folder / f"{fault}.yaml"
    path.write_text(json.dumps(suite))
    with Store.open(str(copied.folder / "audit.db"), create=False, read_only=True) as store:
        clean = next(run.ulid for run in store.list_runs(50) if run.suite_name == "copied" and run.exit_code == 0)
    done = audit(copied.folder, "run", path.name, "--baseline", clean, "--results", f"{fault}.json")
    assert done.returncode == 1, done.stdout + done.stderr
