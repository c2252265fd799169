"""One browser and the stores that it is shown, for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser import stores
from tests.browser.chrome import CHROMIUM
from tests.browser.stores import ShownRun
from tests.http.conftest import backend, decode, one_thread
from tests.http.server import serving

__all__ = ["backend", "decode", "one_thread"]
KINDS = ("quickstart", "known_bad", "endpoint", "vllm", "empty", "hostile")


@pytest.fixture(scope="session")
def shown(tmp_path_factory, backend, decode, pytestconfig) -> dict[str, ShownRun | None]:
    """The runs by kind."""
    folder = tmp_path_factory.mktemp("browser")

    def served_by(gamma=0):
        return serving(backend, decode, gamma)

    return {
        "quickstart": stores.quickstart(folder, pytestconfig.getoption("--quickstart-store")),
        "known_bad": stores.known_bad(folder),
        "endpoint": stores.endpoint(folder, served_by),
        "vllm": stores.vllm(folder),
        "empty": stores.empty(folder),
        "hostile": stores.hostile(folder),
    }


@pytest.fixture
def one(kind: str, shown: dict[str, ShownRun | None]) -> ShownRun:
    """The run of a test's kind."""
    run = shown[kind]
    if run is None:
        pytest.skip("no run of vLLM: make test-vllm VLLM_TESTS=tests/vllm/test_run_for_pages.py")
    return run


@pytest.fixture(scope="session")
def chrome(shown, chromium) -> Browser:
    """Chromium; it starts after the runs are there, because Playwright's event loop takes over the thread."""
    return chromium


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Chromium for pages that need no run."""
    stores.chromium_missing(CHROMIUM)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
