"""Helpers read as one process does, whatever happens to them, and none of them stays."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from audit.checks import load
from audit.checks.base.shared_reading import AskedCheck, evaluate_together
from audit.checks.battery import CLAIMS
from audit.evidence.records import Evidence, LazyRequests
from audit.evidence.verdicts import Finding
from audit.runs import reading_helpers
from audit.runs.reading_helpers import ReadingHelpers
from engine.core.types import RecordLevel
from engine.record.envelope import MAGIC
from engine.record.trace import lazy_trace
from tests.audit.checks.lazy_arms import lazily
from tests.audit.checks.simulator import SAMPLED, Setup, arm, changed, put, world

ASKED = {name: AskedCheck(load(name), {}) for name in CLAIMS}
SETUP = Setup(level=RecordLevel.TOPK, sampling=replace(SAMPLED, max_new_tokens=30))


def pids_of(helpers):
    """The processes that have begun."""
    return () if helpers._pool is None else tuple(helpers._pool._processes)


@pytest.fixture(scope="module")
def given():
    """Twenty requests, of which one breaks two rules."""
    made = arm(world(3), SETUP, 20)
    trace = made.requests[11].trace
    return lazily(changed(made, 11, examined_q=put(trace.examined_q, 3, 0.4)))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(reading_helpers, "BATCH", 60)


def judged(given, helpers):
    return list(evaluate_together(ASKED, Evidence(given), helpers.read))


def ended(pid):
    """True once a process is gone."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.medium
def test_results_do_not_depend_on_the_number_of_helpers(given):
    expected = list(evaluate_together(ASKED, Evidence(given)))
    assert {result.verdict.value for _, result in expected} >= {"fault", "certified"}
    with ReadingHelpers(2, least=1) as helpers:
        assert judged(given, helpers) == expected
        pids = pids_of(helpers)
        assert len(pids) == 2
        assert judged(given, helpers) == expected, "the second arm has the same helpers"
        assert pids_of(helpers) == pids
    assert all(map(ended, pids))


@pytest.mark.medium
def test_helpers_read_what_they_are_given(given, monkeypatch):
    """Nothing is read here if they get everything: else a helper that always fails would not show."""
    expected = list(evaluate_together(ASKED, Evidence(given)))
    monkeypatch.setattr(reading_helpers, "AHEAD", 100)
    monkeypatch.setattr(reading_helpers, "_read", lambda *_: pytest.fail("a request was read here"))
    with ReadingHelpers(2, least=1) as helpers:
        assert judged(given, helpers) == expected


@pytest.mark.medium
def test_a_helper_that_dies_costs_no_result(given):
    expected = list(evaluate_together(ASKED, Evidence(given)))
    with ReadingHelpers(1, least=1) as helpers:
        judged(given, helpers)
        os.kill(pids_of(helpers)[0], signal.SIGKILL)
        assert judged(given, helpers) == expected
    with ReadingHelpers(1, least=1) as helpers:
        parts = helpers.read(given, [load("law")])
        first = next(parts)
        os.kill(pids_of(helpers)[0], signal.SIGKILL)
        assert len([first, *parts]) == 20


def no_process(*_arguments, **_named):
    raise OSError("no process can be started")


@pytest.mark.medium
def test_without_a_process_everything_is_read_here(given, monkeypatch):
    expected = list(evaluate_together(ASKED, Evidence(given)))
    monkeypatch.setattr(reading_helpers, "ProcessPoolExecutor", no_process)
    with ReadingHelpers(1, least=1) as helpers:
        assert judged(given, helpers) == expected
        assert pids_of(helpers) == ()


def test_small_arms_whole_rows_and_one_processor_need_no_helper(given):
    rows = lazily(arm(world(3), replace(SETUP, level=RecordLevel.FULL), 2))
    for made, helpers in (
        (given, ReadingHelpers(1)),
        (rows, ReadingHelpers(1, least=1)),
        (given, ReadingHelpers(0, least=1)),
    ):
        list(helpers.read(made, [load("accounting")]))
        assert pids_of(helpers) == ()


@pytest.mark.medium
@pytest.mark.parametrize("index", [1, 19])
def test_a_record_that_no_check_can_read_there_or_here_is_a_finding_in_its_place(given, index):
    def damaged(at):
        request = given.requests[at]
        return replace(request, trace=lazy_trace(request.trace.header, lambda: MAGIC)) if at == index else request

    spoilt = replace(given, requests=LazyRequests(20, damaged))
    with ReadingHelpers(1, least=1) as helpers:
        parts = [part for (part,) in helpers.read(spoilt, [load("law")])]
    assert [at for at, part in enumerate(parts) if isinstance(part, Finding)] == [index]
    assert parts[index].request == given.requests[index].request_id


@pytest.mark.medium
def test_a_reading_that_is_given_up_ends_the_helpers(given):
    with ReadingHelpers(1, least=1) as helpers:
        parts = helpers.read(given, [load("law")])
        next(parts)
        pids = pids_of(helpers)
        parts.close()
        assert pids_of(helpers) == ()
    assert len(pids) == 1
    assert all(map(ended, pids))


INTERRUPTED = """
import signal
import time
# a job in the background of a shell ignores the signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from audit.checks import load
from audit.runs.reading_helpers import ReadingHelpers
from engine.core.types import RecordLevel
from tests.audit.checks.lazy_arms import lazily
from tests.audit.checks.simulator import Setup, arm, world
from tests.audit.runs.test_reading_helpers import pids_of
made = lazily(arm(world(3), Setup(level=RecordLevel.TOPK), 20))
with ReadingHelpers(1, least=1) as helpers:
    parts = helpers.read(made, [load("law")])
    next(parts)
    print(*pids_of(helpers), flush=True)
    while True:
        time.sleep(0.1)
"""


@pytest.mark.medium
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_leaves_no_process(number):
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=root,
        env=environment,
    ) as process:
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 1
        process.send_signal(number)
        process.wait(20)
    assert all(map(ended, pids))
