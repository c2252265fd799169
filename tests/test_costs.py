"""The limit of the unit tier: what a case costs, in its own process and in children, without what it shares."""

import json

import pytest

from tests import conftest
from tests.support.costs import YARDSTICK_S, slowness
from tests.support.tiers import TIERS

FILE = """
import os, time
import pytest

def burn(seconds=0.08):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def test_cheap():
    time.sleep(0.08)

def test_dear():
    burn()

def test_dear_in_a_child():
    child = os.fork()
    if child == 0:
        burn()
        os._exit(0)
    os.waitpid(child, 0)

@pytest.mark.medium
def test_medium():
    burn()

@pytest.fixture
def dear():
    yield
    burn()

def test_dear_at_its_end(dear):
    pass

@pytest.fixture(scope="module")
def shared():
    burn()
    yield
    burn()

def test_sharing(shared):
    pass

uses = []

def test_dear_once():
    if not uses:
        burn()
    uses.append(1)

def test_failing():
    burn()
    assert False
"""
OFF = ("cacheprovider", "xdist", "hypothesispytest", "unraisableexception", "threadexception")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Outcome and line of each case, and the messages of the failed."""
    folder = tmp_path_factory.mktemp("costs")
    (folder / "test_burning.py").write_text(FILE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    medium: some\n    unit: the others\n")
    outcomes = Outcomes()
    off = ["-pno:" + name for name in OFF]
    options = ["--import-mode=importlib", "--cost-limit=0.01", f"--costs={folder}/costs.jsonl", *off]
    pytest.main([*options, "-qq", "--rootdir", str(folder), str(folder)], [conftest, outcomes])
    lines = map(json.loads, (folder / "costs.jsonl").read_text().splitlines())
    return outcomes.of, {line["case"].partition("::test_")[2]: line for line in lines}


class Outcomes:
    def __init__(self):
        self.of = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            self.of[report.nodeid.partition("::test_")[2]] = report.outcome, report.longreprtext


@pytest.mark.parametrize("case", ["dear", "dear_in_a_child", "dear_at_its_end"])
def test_a_unit_case_above_the_limit_fails_and_its_mend_is_named(case, measured):
    outcome, text = measured[0][case]
    assert outcome == "failed"
    assert f"::test_{case} costs 0." in text
    assert "may cost 0.01 s" in text
    assert "@pytest.mark.medium" in text


@pytest.mark.parametrize("case", ["cheap", "medium", "sharing", "dear_once"])
def test_others_pass(case, measured):
    """A sleeping case, a marked one, one whose fixture of the module is dear, one that is dear the first time only."""
    assert measured[0][case] == ("passed", "")


@pytest.mark.parametrize(("yardstick", "times"), [(0.5, 1.0), (1.0, 1.0), (1.5, 1.5), (9.0, 3.0)])
def test_the_limit_grows_with_a_busy_machine_and_not_for_ever(yardstick, times):
    assert slowness(yardstick * YARDSTICK_S) == pytest.approx(times)


def test_a_failure_keeps_its_own_message(measured):
    assert "assert False" in measured[0]["failing"][1]


def test_the_file_has_every_case_and_shared_fixtures_apart(measured):
    lines = measured[1]
    assert set(lines) == set(measured[0])
    assert lines["cheap"]["cost"] < 0.05 < lines["medium"]["cost"]
    assert lines["sharing"]["cost"] < 0.05
    assert lines["sharing"]["shared"] >= 0.08
    assert sum(line["shared"] for line in lines.values()) >= 0.16


def test_each_registered_mark_is_a_tier(pytestconfig):
    registered = {line.partition(":")[0] for line in conftest_marks(pytestconfig)}
    assert registered == TIERS | {"unit"}


def conftest_marks(config):
    """The lines of pyproject.toml, without those that plug-ins add."""
    import tomllib

    settings = tomllib.loads((config.rootpath / "pyproject.toml").read_text())
    return settings["tool"]["pytest"]["ini_options"]["markers"]
