"""The one printer: a line stays one line, nothing hidden stays hidden, colours only where a terminal has them."""

from __future__ import annotations

import io
import sys

import pytest

from audit.errors import UserError
from audit.text import printer
from audit.text.printer import LONGEST_NOTE, Painted, echo, echo_document, echo_painted, echo_raw, note


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_line_is_one_line_and_a_document_keeps_its_lines(capsys):
    echo("a\nrun 01FORGED", "\x1b[2J")
    echo_document("{\n\x07}")
    assert capsys.readouterr().out == "a\\nrun 01FORGED\n\\x1b[2J\n{\n\\x07}\n"


def test_a_message_goes_to_stderr_and_has_an_end(capsys):
    note("x" * 1_000_000)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err) < LONGEST_NOTE + 60
    assert printed.err.endswith(f"... ({1_000_000 - LONGEST_NOTE} more characters)\n")


def test_a_stream_without_the_characters_shows_escapes(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    echo("Grüße")
    sys.stdout.flush()
    assert raw.getvalue() == b"Gr\\xfc\\xdfe\n"


@pytest.mark.parametrize(
    ("stream", "changes", "coloured"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}, False),
    ],
)
def test_colours_are_for_terminals_that_have_them(stream, changes, coloured, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for key, value in {"TERM": "xterm", **changes}.items():
        monkeypatch.setenv(key, value)
    assert printer.colours(stream) is coloured


def test_painted_text_is_as_visible_as_any(monkeypatch, capsys):
    monkeypatch.setattr(printer, "colours", lambda stream: True)
    assert printer._styled(Painted("\x1b]8;;x\n", "red")) == "\x1b[31m\\x1b]8;;x\\n\x1b[0m"
    echo_painted([Painted("\x1b[2J"), Painted("b", "green")])
    assert capsys.readouterr().out.startswith("\\x1b[2J")


def test_raw_text_is_for_programs(monkeypatch, capsys):
    echo_raw("\x1b")
    assert capsys.readouterr().out == "\x1b\n"
    monkeypatch.setattr(sys, "stdout", Terminal())
    with pytest.raises(UserError, match="--out FILE"):
        echo_raw("\x1b")
