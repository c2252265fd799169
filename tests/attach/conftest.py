"""The run that all pages and the whole path start from, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.attach.transcripts import starting_point


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, suite, policy and a finished run."""
    folder = tmp_path_factory.mktemp("start")
    starting_point(folder)
    return folder


@pytest.fixture
def deployment(start: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(start, tmp_path / "deployment"))
