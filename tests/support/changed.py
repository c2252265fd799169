"""The options `--since COMMIT` and `--most N:SEED`: the tests of the rooms that changed, and no more than so many."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import pytest

from tests.support.share import Share

ROOT = Path(__file__).parents[2]


def changed_files(commit: str) -> list[str]:
    """The files that differ from a commit.

    Raises:
        UsageError: git does not know the commit.
    """
    command = ["git", "diff", "--name-only", "--no-renames", commit]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise pytest.UsageError(f"--since {commit}: {done.stderr.strip().splitlines()[0]}")
    return done.stdout.splitlines()


def rooms(files: Iterable[str]) -> frozenset[str]:
    """The folders of tests that mirror changed modules, and changed files of tests."""
    touched = set()
    for file in map(PurePosixPath, files):
        if file.parts[0] in ("engine", "audit") and len(file.parts) > 2:
            touched.add(f"tests/{file.parts[0]}/{file.parts[1]}/")
        elif file.parts[0] in ("migrations", "schemas"):
            touched.add(f"tests/{file.parts[0]}/")
        elif file.name.startswith("test_"):
            touched.add(str(file))
    return frozenset(touched)


def changed(items: Sequence[pytest.Item], commit: str) -> list[pytest.Item]:
    """The tests that lie in a changed room."""
    touched = tuple(rooms(changed_files(commit)))
    return [item for item in items if item.nodeid.startswith(touched)]


def share_of(count: int, most: str) -> Share:
    """The share that keeps at most N of so many tests; the seed says which.

    Raises:
        UsageError: `most` is not N:SEED.
    """
    match = re.fullmatch(r"([1-9]\d*):(\d+)", most)
    if match is None:
        raise pytest.UsageError(f"--most {most}: write N:SEED, such as 100:332")
    of = max(1, -(-count // int(match[1])))
    return Share(int(match[2]) % of + 1, of)
