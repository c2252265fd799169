"""Charts drawn in processes of their own: the same drawings, and what happens when one dies or never starts."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from audit.report.html import charts
from audit.view.drawer import COMMAND, PROCESSES, Drawer, examples
from audit.view.drawing_child import NotDrawn

CHART = examples()[0]
BROKEN = replace(CHART, spec={"mark": {"type": "no such mark"}, "encoding": 3})


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
    assert len(drawer.pids) == PROCESSES
    return set(drawer.pids)


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_drawing_is_that_of_the_report(drawer):
    for chart in examples():
        assert drawn(drawer, chart) == charts.svg(chart)


def test_hostile_text_stays_text(drawer):
    hostile = replace(CHART, title='</title><script>alert("\u202e")</script>')
    drawing = drawn(drawer, hostile)
    assert "<script" not in drawing
    assert drawing == charts.svg(hostile)


def test_charts_are_drawn_at_the_same_time(drawer):
    pids = both_begun(drawer)
    drawings = [drawer.begin(replace(CHART, title=f"chart {number}")) for number in range(2 * PROCESSES)]
    assert [drawing.result() for drawing in drawings] == [
        charts.svg(replace(CHART, title=f"chart {number}")) for number in range(2 * PROCESSES)
    ]
    assert set(drawer.pids) == pids


def test_a_chart_that_cannot_be_drawn_harms_no_other(drawer):
    before = both_begun(drawer)
    for _ in range(PROCESSES):
        with pytest.raises(NotDrawn):
            drawn(drawer, BROKEN)
    for _ in range(PROCESSES):
        assert drawn(drawer, CHART) == charts.svg(CHART)
    assert set(drawer.pids) == before


def test_killed_processes_get_successors(drawer):
    before = both_begun(drawer)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    for drawing in [drawer.begin(CHART) for _ in range(4 * PROCESSES)]:
        assert drawing.result() == charts.svg(CHART)
    assert both_begun(drawer).isdisjoint(before)


@pytest.mark.parametrize("command", [("/no/such/python",), (sys.executable, "-c", "pass")])
def test_without_a_process_the_server_draws_and_says_so(command):
    said = []
    with Drawer(said.append, command) as drawer:
        assert drawn(drawer, CHART) == charts.svg(CHART)
        assert drawn(drawer, CHART) == charts.svg(CHART)
    assert len(said) == 1
    assert said[0].startswith("the server draws charts itself, so pages take longer: its drawing process ")


def test_a_chart_that_ends_the_process_is_not_drawn_here():
    dying = "import sys; print('{}', flush=True); sys.stdin.readline(); sys.exit(7)"
    with Drawer(pytest.fail, (sys.executable, "-c", dying)) as drawer, pytest.raises(NotDrawn, match="exit code 7"):
        drawn(drawer, CHART)


def test_the_processes_end_with_their_server():
    with Drawer(pytest.fail) as drawer:
        pids = both_begun(drawer)
        assert all(alive(pid) for pid in pids)
    assert not any(alive(pid) for pid in pids)


def test_the_process_ends_when_its_input_does():
    done = subprocess.run(COMMAND, input="", capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("\n") == 1
