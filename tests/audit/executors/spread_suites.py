"""Suites whose requests can be spread: scripted models, with an arm that remembers and one that reads."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

from audit.evidence.coverage.catalogue import CATALOGUE
from audit.evidence.coverage.groups import Group
from audit.store import Store, StoredCoverage
from tests.audit.invoke import invoke
from tests.audit.runs.scripted_suites import suite_file

RESULT = (
    *("arm", "check", "claim", "level", "verdict", "summary", "n"),
    *("statistic", "p_value", "effect", "bound", "margin", "findings", "details"),
)
MEMORY = "proposer: {kind: suffix, gamma: 2, options: {cached_requests: 4}}"


def spread_suite(folder: Path, *, batch: int = 1, seed: int = 5) -> Path:
    """With one row at a time, all arms but `gumbel`, which remembers requests, can be decoded in parts."""
    path = suite_file(folder)
    text = path.read_text().replace("proposer: {kind: ngram, gamma: 2}", MEMORY)
    text = text.replace("checks: [replay]\n", "checks: [replay, anchor]\n", 1)
    # floors for situations of neighbours would hold results back in parts sooner than in the whole
    text = text.replace("directed: off", "least: 0")
    text = text.replace("batch_size: 3", f"batch_size: {batch}").replace("seed: 5", f"seed: {seed}")
    path.write_text(text.replace("max_new_tokens: 12", "max_new_tokens: 6"))
    return path


def local_run(suite: Path, store: str) -> str:
    """The id of the run of one process."""
    done = invoke("run", str(suite), "--store", store, "--results", str(suite.with_name("local.json")))
    assert done.exit_code in (0, 3), done.stderr
    return newest(store)


def newest(store: str) -> str:
    with Store.open(store, create=False, read_only=True) as opened:
        return opened.resolve("latest")


def shard(suite: Path, store: str, part: str) -> str:
    """The id of the run of one shard."""
    done = invoke("run", str(suite), "--shard", part, "--store", store)
    assert done.exit_code == 0, done.stderr
    return newest(store)


def facts(store: str, run: str) -> dict[str, Any]:
    """What two runs of one suite have to share: everything but ids, times, and counts of what neighbours did."""
    with Store.open(store, create=False, read_only=True) as opened:
        record = opened.load_run(run)
        assert opened.damage((run,)) == ()
        checks = [[str(getattr(each, name)) for name in RESULT] for each in opened.checks(run)]
        assert checks
        assert record.content_root is not None
        return {
            "root": record.content_root,
            "requests": opened.finished(run),
            "checks": checks,
            "coverage": [astuple(each) for each in opened.coverage(run) if not _of_neighbours(each)],
            "exit": record.exit_code,
            "tokens": record.tokens,
            "arms": [(arm.name, arm.kind, arm.level, arm.spec, arm.effective.to_json()) for arm in record.arms],
            "artifacts": record.artifacts,
            "environment": record.environment,
            "memory": [each.detail for each in record.events if "memory of finished" in each.detail],
        }


def _of_neighbours(counted: StoredCoverage) -> bool:
    return CATALOGUE[counted.situation].group is Group.BATCH
