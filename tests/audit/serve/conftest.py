"""Servers that several tests share."""

from __future__ import annotations

import pytest

from tests.audit.serve.server import serving


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """The bundled pair, with its draft model."""
    with serving(tmp_path_factory.mktemp("pair"), "bundled:target", "--draft", "bundled:draft") as server:
        yield server


@pytest.fixture(scope="session")
def script(tmp_path_factory):
    """A script with a scripted draft: as fast as the loop allows."""
    with serving(tmp_path_factory.mktemp("script"), "scripted:1", "--draft", "scripted:2") as server:
        yield server
