"""The table of a run in progress: what it counts, and what it draws at 80 columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from audit.evidence.verdicts import Verdict
from audit.terminal import live_table as module
from audit.terminal.live_table import LiveTable


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def drawn(table: LiveTable, width: int = 80, height: int = 24) -> list[str]:
    out = io.StringIO()
    table._console = Console(file=out, width=width, height=height, force_terminal=False)
    table._console.print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_rates_and_the_time_that_is_left_come_from_the_requests_that_ran(clock):
    table = LiveTable(Console())
    table.planned({"base": 4, "spec": 8})
    table.arm("base", 4, 2)
    clock[0] += 10
    table.advance(50)
    table.advance(50)
    table.arm("spec", 8, 0)
    clock[0] += 20
    table.advance(30)
    lines = drawn(table)
    assert lines[0].split() == ["arm", "requests", "tokens/s", "left", "verdicts"]
    assert lines[1].split()[1:] == ["4/4", "10"]
    assert lines[2].split()[1:] == ["1/8", "2", "2.3", "min"]
    # 3 requests in 30 s, 7 are left
    assert lines[3] == "30 s passed, about 1.2 min left; Ctrl-C stops, audit resume goes on"


def test_verdicts_appear_as_they_come_and_a_new_round_counts_anew(clock):
    table = LiveTable(Console())
    table.planned({"spec": 2})
    table.arm("spec", 2, 0)
    table.advance(5)
    table.judging("spec")
    table.judged("spec", "law", Verdict.CERTIFIED)
    table.judged("spec", "seed", Verdict.FAULT)
    assert drawn(table)[1].endswith("1 fault, 1 certified, checking")
    table.arm("spec", 1, 0)
    assert drawn(table)[1].split()[1] == "1/2"
    table.judging("spec")
    assert drawn(table)[1].endswith("checking")
    assert "certified" not in drawn(table)[1]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_running_arm_is_drawn_and_nothing_is_wider_or_taller_than_the_screen(clock, width):
    table = LiveTable(Console())
    table.planned({f"an arm with a rather long name {i}": 2 for i in range(60)})
    table.arm("an arm with a rather long name 41", 2, 0)
    table._arms["an arm with a rather long name 41"].verdicts.update(dict.fromkeys(Verdict, 3))
    lines = drawn(table, width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24
    assert any("long name 41" in line for line in lines) or width == 40
    assert any(line.startswith("... and ") for line in lines)


def test_names_are_text(clock):
    table = LiveTable(Console())
    table.arm("[red]\x1b[2J\u202e:smile:", 1, 0)
    assert "[red]\\x1b[2J\\u202e" in drawn(table)[1]
