"""The one printer: what reaches a terminal or a log goes through here, and it moves no cursor and hides nothing.

A line is one line: a control, bidi or invisible character in it, a line break too, shows as its escape. A document
(JSON, XML, Markdown, CSV) keeps its line breaks. Colours come from here only, on a terminal that has them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TextIO

import click

from audit.errors import UserError
from audit.text.unsafe import shortened, visible, visible_lines

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
        _write(visible(line), err=False)


def echo_document(text: str) -> None:
    """Print a text of several lines on stdout."""
    _write(visible_lines(text), err=False)


def echo_raw(text: str) -> None:
    """Print a text as it is, for a program.

    Raises:
        UserError: stdout is a terminal, which would obey it.
    """
    if sys.stdout.isatty():
        raise UserError("a terminal would obey text as it is stored; write it to a file: --out FILE")
    # click would take escape sequences out
    sys.stdout.write(_encodable(text, sys.stdout) + "\n")


def echo_painted(pieces: Iterable[Painted]) -> None:
    """Print one line on stdout, in colours if the terminal has them."""
    coloured = colours(sys.stdout)
    _write("".join(map(_styled if coloured else _plain, pieces)), err=False)


def note(*lines: str) -> None:
    """Print messages on stderr; a very long one is cut."""
    for line in lines:
        _write(visible(shortened(line, LONGEST_NOTE)), err=True)


def colours(stream: TextIO) -> bool:
    """True if a stream is a terminal that shows colours, and the user wants them (no-color.org)."""
    return live(stream) and not os.environ.get("NO_COLOR")


def live(stream: TextIO) -> bool:
    """True if a stream is a terminal whose cursor moves."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _plain(piece: Painted) -> str:
    return visible(piece.text)


def _styled(piece: Painted) -> str:
    text = visible(piece.text)
    return click.style(text, fg=piece.colour, dim=piece.dim or None) if piece.colour or piece.dim else text


def _write(text: str, *, err: bool) -> None:
    click.echo(_encodable(text, sys.stderr if err else sys.stdout), err=err)


def _encodable(text: str, stream: TextIO) -> str:
    """The text with characters that the stream's encoding lacks as escapes."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
