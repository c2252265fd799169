from __future__ import annotations

import pytest

from audit.terminal.tables import INDENT, _coloured, placed
from tests.audit.invoke import invoke
from tests.audit.store.build import made_store

COLUMNS = ("arm", "verdict", "n", "what was found")
FOUND = "no departure in 26 tests of 849 tokens; leak towards q at most 0.0139 in total variation per token (99 %)"
ROWS = [("greedy", "certified", "850", FOUND), ("ngram", "fault", "12", "short")]


def lines(columns, rows, width):
    return (line.text for line in placed(columns, rows, width))


def joined(found: list[str], start: int) -> str:
    return " ".join(line[start:].strip() for line in found)


def test_without_a_width_every_row_is_one_line():
    assert [len(line) > 120 for line in lines(COLUMNS, ROWS, None)] == [False, True, False]


def test_a_table_that_fits_is_the_same_with_and_without_a_width():
    assert list(lines(COLUMNS, ROWS, 200)) == list(lines(COLUMNS, ROWS, None))


@pytest.mark.parametrize("width", [80, 120])
def test_the_last_column_wraps_under_itself(width):
    found = list(lines(COLUMNS, ROWS, width))
    assert max(map(len, found)) <= width
    start = found[0].index("what was found")
    first, *rest = found[1:-1]
    assert rest
    assert all(line[:start].isspace() and not line[start].isspace() for line in rest)
    assert joined([first, *rest], start) == FOUND
    assert found[-1][start:] == "short"


def test_columns_without_room_go_to_an_indented_line_and_nothing_is_lost():
    columns, row = [f"column-{i}" for i in range(10)], [f"value-{i}" for i in range(10)]
    found = list(lines(columns, [row], 80))
    assert max(map(len, found)) <= 80
    assert [line.startswith(INDENT) for line in found] == [False, True, False, True]
    assert " ".join(found[2:]).split() == row


def test_a_last_column_without_room_beside_the_others_has_lines_of_its_own():
    columns = ("a" * 30, "b" * 30, "what was found")
    found = list(lines(columns, [("1", "2", FOUND)], 80))
    assert found[1] == INDENT + "what was found"
    assert joined(found[3:], 0) == FOUND
    assert max(map(len, found)) <= 80


@pytest.mark.parametrize("width", [None, 40])
def test_verdicts_and_marked_claims_are_coloured_and_nothing_else(width):
    rows = [("greedy", "fault", "!law +equality +bitwise ?replay +accounts"), ("a fault", "law!", "+law, in words")]
    pieces = [piece for line in placed(("arm", "", "claims"), rows, width) for piece in _coloured(line)]
    assert {piece.text: piece.colour for piece in pieces if piece.colour} == {
        "fault": "red",
        "!law": "red",
        "+equality": "green",
        "+bitwise": "green",
        "?replay": "yellow",
        "+accounts": "green",
    }
    text = "".join(piece.text for piece in pieces)
    assert text == "".join(lines(("arm", "", "claims"), rows, width))


def test_a_word_longer_than_the_line_is_broken_and_not_lost():
    found = list(lines(("a", "b"), [("1", "x" * 300)], 80))
    assert "".join(line.strip() for line in found[1:]).replace("1  ", "") == "x" * 300


@pytest.mark.medium
@pytest.mark.parametrize("width", ["80", "120"])
def test_a_command_wraps_in_columns_and_not_when_piped_or_wide(width, tmp_path, monkeypatch):
    url = made_store(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    piped = invoke("list", "--store", url).stdout
    assert len(piped.splitlines()) == 2
    monkeypatch.setenv("COLUMNS", width)
    narrow = invoke("list", "--store", url).stdout
    assert max(map(len, narrow.splitlines())) <= int(width)
    assert narrow.split() == piped.split()
    assert invoke("list", "--wide", "--store", url).stdout == piped
