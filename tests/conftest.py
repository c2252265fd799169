"""Options of the test run, and how examples are drawn."""

from __future__ import annotations

import pytest
from hypothesis import settings

# the same examples every time, and no failure because a machine is busy
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Skips that a run may turn into failures."""
    parser.addoption("--require-postgres", action="store_true", help="fail, not skip, where PostgreSQL is missing")
