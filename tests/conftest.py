"""Options of the test run, and how examples are drawn."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.support")

from tests.support import costs  # noqa: E402
from tests.support.changed import changed, share_of  # noqa: E402
from tests.support.share import parse_share, split  # noqa: E402
from tests.support.tiers import TIERS  # noqa: E402

# imports only add objects: the collector would walk over all of them again and again
gc.disable()

# the same examples every time, and no failure because a machine is busy
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")


@pytest.fixture(scope="session", autouse=True)
def no_width_of_a_terminal() -> Iterator[None]:
    """Tables are as wide as their rows: pytest-xdist sets `COLUMNS` in its workers, which would wrap them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Skips that a run may turn into failures, the share of the tests that run, and the number of kills."""
    parser.addoption("--require-postgres", action="store_true", help="fail, not skip, where PostgreSQL is missing")
    parser.addoption("--kills", type=int, default=5, help="kills of a run per database (test_kills.py)")
    parser.addoption("--points", type=int, default=3, help="moments of a full disk and of locks (test_hard_times.py)")
    parser.addoption("--figures", metavar="FOLDER", help="where slow tests write figures for docs/promises.md")
    parser.addoption("--honest", type=int, default=10, help="stores without damage (test_honest_stores.py)")
    parser.addoption("--soak", type=int, default=30, help="seconds of test_soak.py")
    parser.addoption("--honest-from", type=int, default=0, help="the first run of test_honest_endpoints.py")
    parser.addoption("--quickstart-store", metavar="FILE", help="a store with a quickstart, so that none is run")
    parser.addoption("--site", metavar="FOLDER", default="build/site", help="what make docs-site built (test_site.py)")
    parser.addoption("--mlx-python", metavar="PATH", help="the interpreter that has mlx_lm (tests/process_engines)")
    parser.addoption("--gpu-requests", type=int, default=4, help="requests of 150 tokens per bitwise case (tests/gpu)")
    costs.add_options(parser)
    parser.addoption("--share", metavar="K/N", help="run every N-th test, starting at the K-th")
    parser.addoption("--since", metavar="COMMIT", help="run the tests of the rooms that changed since a commit")
    parser.addoption("--most", metavar="N:SEED", help="run at most N tests; the seed says which")


def pytest_configure(config: pytest.Config) -> None:
    """Measures each case."""
    config.pluginmanager.register(costs.Costs(config), "costs")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Names the share above the first test, in quiet runs too."""
    share, reporter = session.config.getoption("--share"), session.config.pluginmanager.get_plugin("terminalreporter")
    if share and reporter:
        reporter.write_line(f"share: {parse_share(share)} of the tests")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks what needs PostgreSQL, which the unit tier leaves to `make test-postgres`, and the unit tier."""
    callspec = getattr(item, "callspec", None)
    kind = None if callspec is None else callspec.params.get("any_url")
    if kind == "postgresql" or "postgres" in getattr(item, "fixturenames", ()):
        item.add_marker("postgres")
    if not any(mark.name in TIERS for mark in item.iter_markers()):
        item.add_marker("unit")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of other rooms and the other shares, after the markers have selected."""
    everything, since, most = list(items), config.getoption("--since"), config.getoption("--most")
    if since:
        items[:] = changed(items, since)
    if share := config.getoption("--share"):
        items[:], _ = split(items, parse_share(share))
    if most:
        items[:], _ = split(items, share_of(len(items), most))
    if len(items) < len(everything):
        kept = set(items)
        config.hook.pytest_deselected(items=[item for item in everything if item not in kept])


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Collects garbage again, but leaves out what the imports made, which lives as long as the process."""
    gc.freeze()
    gc.enable()
