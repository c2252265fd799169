"""Text from outside - prompts, outputs, suites, reports - made safe to print.

A terminal obeys escape sequences, and a reader is misled by characters that reorder or hide others; a spreadsheet
computes a cell that looks like a formula. The functions here change what is shown, never what is stored.
"""

from __future__ import annotations

import re
from typing import Any, Final

NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""First characters, full-width ones too, of a cell that a spreadsheet computes; after OWASP's page on CSV injection."""


def visible(text: str) -> str:
    r"""The text with every character that is not printable as its escape, such as `\x1b` or `\u202e`.

    Line breaks too: the result is one line.
    """
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def visible_lines(text: str) -> str:
    """As `visible`, with the line breaks kept."""
    return "\n".join(visible(line) for line in text.split("\n"))


def inert(value: Any) -> Any:
    """A value for a cell of a spreadsheet: visible text, with an apostrophe in front of what would be computed."""
    if not isinstance(value, str):
        return value
    text = visible_lines(value)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text


def shortened(text: str, most: int) -> str:
    """The text, or its first `most` characters with the number of the others."""
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]}... ({left} more characters)"
