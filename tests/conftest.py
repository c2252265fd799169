"""Options of the test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Skips that a run may turn into failures."""
    parser.addoption("--require-postgres", action="store_true", help="fail, not skip, where PostgreSQL is missing")
