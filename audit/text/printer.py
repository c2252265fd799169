"""All terminal and log output. Escapes control, bidi and invisible characters.

A line is one line: a control, bidi or invisible character in it, a line break too, shows as its escape. A document
(JSON, XML, Markdown, CSV) keeps its line breaks. Colours come from here only, on a terminal that has them. There, and
where `COLUMNS` says how wide stdout is, a long line is broken between words, and a command at its end begins a line of
its own, so that it can be copied whole.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

import click

from audit.errors import UserError
from audit.text.unsafe import shortened, visible, visible_lines

WORD: Final = re.compile(r" *[^ ]+ *| +")
COMMAND: Final = re.compile(r"(?<=[:;] )audit [a-z].*")
COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
LONGEST_NOTE: Final = 8000
"""Characters of a message; a name or a server's answer may be a megabyte."""


@dataclass(frozen=True, slots=True)
class Painted:
    """A piece of a line with its colour, one of click's names."""

    text: str
    colour: str | None = None
    dim: bool = False


def echo(*lines: str) -> None:
    """Print lines on stdout, which is for data."""
    for line in lines:
        _write_line(visible(line), err=False)


def echo_document(text: str) -> None:
    """Print a text of several lines on stdout."""
    _write(visible_lines(text), err=False)


def echo_page(markdown: str) -> None:
    """Print a page of the documentation: laid out and by screens on a terminal with colours, as Markdown elsewhere."""
    if not colours(sys.stdout):
        echo_document(markdown)
        return
    # imported late: rich is for terminals only
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=width_of_stdout())
    with console.pager(styles=True):
        console.print(Markdown(visible_lines(COMMENT.sub("", markdown))))


def echo_raw(text: str) -> None:
    """Print a text as it is, for a program. Raises UserError: stdout is a terminal, which would obey it."""
    if sys.stdout.isatty():
        raise UserError("a terminal would obey text as it is stored; write it to a file: --out FILE")
    # click would take escape sequences out
    sys.stdout.write(_encodable(text, sys.stdout) + "\n")


def echo_painted(pieces: Iterable[Painted]) -> None:
    """Print one line on stdout, in colours if the terminal has them. It is not broken between words."""
    coloured = colours(sys.stdout)
    _write("".join(_styled(piece) if coloured else visible(piece.text) for piece in pieces), err=False)


def painted_lines(pieces: Sequence[Painted]) -> Iterator[list[Painted]]:
    """The pieces of one long line by lines that fit the terminal; all in one elsewhere."""
    shown = [Painted(visible(piece.text), piece.colour, piece.dim) for piece in pieces]
    start = 0
    for line in _broken("".join(piece.text for piece in shown), width_of_stdout()):
        yield list(_cut(shown, start, start + len(line)))
        start += len(line)


def _cut(pieces: Sequence[Painted], start: int, stop: int) -> Iterator[Painted]:
    """The part of a line between two of its characters."""
    at = 0
    for piece in pieces:
        text = piece.text[max(0, start - at) : max(0, stop - at)]
        if text:
            yield Painted(text, piece.colour, piece.dim)
        at += len(piece.text)


def note(*lines: str) -> None:
    """Print messages on stderr; a very long one is cut."""
    for line in lines:
        _write_line(visible(shortened(line, LONGEST_NOTE)), err=True)


def report(line: str) -> None:
    """Print what a long-running command says of itself, on stderr."""
    note(f"audit: {line}")


def colours(stream: TextIO) -> bool:
    """True if a stream is a terminal that shows colours, and the user wants them (no-color.org)."""
    return live(stream) and not os.environ.get("NO_COLOR")


def live(stream: TextIO) -> bool:
    """True if a stream is a terminal whose cursor moves."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _styled(piece: Painted) -> str:
    text = visible(piece.text)
    return click.style(text, fg=piece.colour, dim=piece.dim or None) if piece.colour or piece.dim else text


def width_of_stdout() -> int | None:
    """Columns for a line of stdout: `COLUMNS` anywhere, else a terminal's own; None for a pipe or a file."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else _width(sys.stdout)


def _width(stream: TextIO) -> int | None:
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # a stream that has no descriptor
        return None


def _write_line(text: str, *, err: bool) -> None:
    width = _width(sys.stderr) if err else width_of_stdout()
    if width is None or len(text) <= width:
        _write(text, err=err)
        return
    command = COMMAND.search(text)
    prose = text[: command.start()] if command else text
    indent = len(text) - len(text.lstrip())
    for number, line in enumerate(_broken(prose, width - indent)):
        _write((" " * indent if number else "") + line.rstrip(), err=err)
    if command:
        _write(text[command.start() :], err=err)


def _broken(text: str, width: int | None) -> Iterator[str]:
    """The text in parts of at most `width` characters that end after a space; a longer word stays whole."""
    line = ""
    for word in WORD.findall(text):
        if width is not None and line and len(line) + len(word.rstrip()) > width:
            yield line
            line = ""
        line += word
    yield line


def _write(text: str, *, err: bool) -> None:
    click.echo(_encodable(text, sys.stderr if err else sys.stdout), err=err)


def _encodable(text: str, stream: TextIO) -> str:
    """The text with characters that the stream's encoding lacks as escapes."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
