"""Charts drawn in processes of their own: the same drawings, and what happens when one dies or never starts."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from audit.report.html import charts
from audit.view import drawer as drawer_module
from audit.view.drawer import PROCESSES, Drawer, DrawingCalls, NotDrawn, examples

CHART = examples()[0]
BROKEN = replace(CHART, spec={"mark": {"type": "no such mark"}, "encoding": 3})


def pids_of(drawer):
    """The processes that have begun."""
    return tuple(child.process.pid for child in drawer._children if child.process is not None)


@pytest.fixture(scope="module")
def drawer():
    with Drawer(pytest.fail) as made:
        yield made


def drawn(drawer, chart):
    return drawer.begin(chart).result()


def both_begun(drawer):
    """The processes, all of which have drawn."""
    for drawing in drawer.warm_up():
        drawing.result()
    assert len(pids_of(drawer)) == PROCESSES
    return set(pids_of(drawer))


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.medium
def test_a_drawing_is_that_of_the_report(drawer):
    for chart in examples():
        assert drawn(drawer, chart) == charts.svg(chart)


def test_hostile_text_stays_text(drawer):
    hostile = replace(CHART, title='</title><script>alert("\u202e")</script>')
    drawing = drawn(drawer, hostile)
    assert "<script" not in drawing
    assert drawing == charts.svg(hostile)


@pytest.mark.medium
def test_charts_are_drawn_at_the_same_time(drawer):
    pids = both_begun(drawer)
    drawings = [drawer.begin(replace(CHART, title=f"chart {number}")) for number in range(2 * PROCESSES)]
    assert [drawing.result() for drawing in drawings] == [
        charts.svg(replace(CHART, title=f"chart {number}")) for number in range(2 * PROCESSES)
    ]
    assert set(pids_of(drawer)) == pids


def test_a_chart_that_cannot_be_drawn_harms_no_other(drawer):
    before = both_begun(drawer)
    for _ in range(PROCESSES):
        with pytest.raises(NotDrawn):
            drawn(drawer, BROKEN)
    for _ in range(PROCESSES):
        assert drawn(drawer, CHART) == charts.svg(CHART)
    assert set(pids_of(drawer)) == before


@pytest.mark.medium
def test_killed_processes_get_successors(drawer):
    before = both_begun(drawer)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    for drawing in [drawer.begin(CHART) for _ in range(4 * PROCESSES)]:
        assert drawing.result() == charts.svg(CHART)
    assert both_begun(drawer).isdisjoint(before)


def no_process(*_arguments, **_named):
    raise OSError(12, "Cannot allocate memory")


def end_at_once():
    os._exit(0)


@pytest.mark.medium
@pytest.mark.parametrize("pool", [no_process, drawer_module.ProcessPoolExecutor])
def test_without_a_process_the_server_draws_and_says_so(pool, monkeypatch):
    said = []
    monkeypatch.setattr(drawer_module, "ProcessPoolExecutor", pool)
    with Drawer(said.append, DrawingCalls(start=end_at_once)) as drawer:
        assert drawn(drawer, CHART) == charts.svg(CHART)
        assert drawn(drawer, CHART) == charts.svg(CHART)
    assert len(said) == 1
    assert said[0].startswith("the server draws charts itself, so pages take longer: its drawing process ")


def end_there(_chart):
    os._exit(7)


@pytest.mark.medium
def test_a_chart_that_ends_the_process_is_not_drawn_here():
    with Drawer(pytest.fail, DrawingCalls(draw=end_there)) as drawer, pytest.raises(NotDrawn, match="exit code 7"):
        drawn(drawer, CHART)


@pytest.mark.medium
def test_the_processes_end_with_their_server():
    with Drawer(pytest.fail) as drawer:
        pids = both_begun(drawer)
        assert all(alive(pid) for pid in pids)
    assert not any(alive(pid) for pid in pids)


SERVER = """
import time
from audit.view.drawer import Drawer, examples
from tests.audit.view.test_drawer import pids_of
with Drawer(print) as drawer:
    drawer.begin(examples()[0]).result()
    print(*pids_of(drawer), flush=True)
    time.sleep(60)
"""


@pytest.mark.medium
def test_the_processes_end_with_a_server_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        pids = [int(word) for word in server.stdout.readline().split()]
        assert [alive(pid) for pid in pids] == [True]
        server.kill()
    last = time.monotonic() + 20
    while any(map(alive, pids)):
        assert time.monotonic() < last
        time.sleep(0.05)
