"""Charts drawn in a process of their own: the same drawings, and what happens when it dies or never starts."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from audit.report.html import charts
from audit.view.drawer import COMMAND, Drawer, NotDrawn, examples

CHART = examples()[0]
BROKEN = replace(CHART, spec={"mark": {"type": "no such mark"}, "encoding": 3})


@pytest.fixture(scope="module")
def drawer():
    with Drawer(pytest.fail) as made:
        yield made


def child_of(drawer):
    return drawer._child.pid


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_drawing_is_that_of_the_report(drawer):
    for chart in examples():
        assert drawer.svg(chart) == charts.svg(chart)


def test_hostile_text_stays_text(drawer):
    hostile = replace(CHART, title='</title><script>alert("\u202e")</script>')
    drawn = drawer.svg(hostile)
    assert "<script" not in drawn
    assert drawn == charts.svg(hostile)


def test_a_chart_that_cannot_be_drawn_harms_no_other(drawer):
    drawer.svg(CHART)
    before = child_of(drawer)
    with pytest.raises(NotDrawn):
        drawer.svg(BROKEN)
    assert drawer.svg(CHART) == charts.svg(CHART)
    assert child_of(drawer) == before


def test_a_killed_process_gets_a_successor(drawer):
    drawer.svg(CHART)
    before = child_of(drawer)
    os.kill(before, signal.SIGKILL)
    assert drawer.svg(CHART) == charts.svg(CHART)
    assert child_of(drawer) != before


@pytest.mark.parametrize("command", [("/no/such/python",), (sys.executable, "-c", "pass")])
def test_without_a_process_the_server_draws_and_says_so(command):
    said = []
    with Drawer(said.append, command) as drawer:
        assert drawer.svg(CHART) == charts.svg(CHART)
        assert drawer.svg(CHART) == charts.svg(CHART)
    assert len(said) == 1
    assert said[0].startswith("the server draws charts itself, so pages take longer: its drawing process ")


def test_a_chart_that_ends_the_process_is_not_drawn_here():
    dying = "import sys; print('{}', flush=True); sys.stdin.readline(); sys.exit(7)"
    with Drawer(pytest.fail, (sys.executable, "-c", dying)) as drawer, pytest.raises(NotDrawn, match="exit code 7"):
        drawer.svg(CHART)


def test_the_process_ends_with_its_server():
    with Drawer(pytest.fail) as drawer:
        for drawn in drawer.warm_up():
            drawn.result()
        pid = child_of(drawer)
        assert alive(pid)
    assert not alive(pid)


def test_the_process_ends_when_its_input_does():
    done = subprocess.run(COMMAND, input="", capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("\n") == 1


def test_a_command_that_is_interrupted_leaves_no_process(tmp_path):
    """The server, asked to stop while its charts are drawn, takes its drawing process along."""
    store = f"sqlite:///{tmp_path}/audit.db"
    audit = [sys.executable, "-m", "audit"]
    subprocess.run([*audit, "db", "upgrade", "--store", store], check=True, capture_output=True)
    command = [*audit, "view", "--no-open", "--store", store]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert "shown at" in server.stderr.readline()
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        drawing = children or _children(server.pid)
        assert drawing
        server.send_signal(signal.SIGINT)
        said = server.stderr.read()
    assert "Traceback" not in said
    for _ in range(50):
        if not any(alive(int(pid)) for pid in drawing):
            break
        time.sleep(0.1)
    assert not any(alive(int(pid)) for pid in drawing)


def _children(pid):
    """Children of any thread of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += (task / "children").read_text().split()
    return found
