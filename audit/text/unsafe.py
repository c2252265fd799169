"""Text from outside - prompts, outputs, suites, reports - made safe to print.

A terminal obeys escape sequences, and a reader is misled by characters that reorder or hide others; a spreadsheet
computes a cell that looks like a formula. The functions here change what is shown, never what is stored.
"""

import json
import re
from typing import Any, Final

NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""First characters, full-width ones too, of a cell that a spreadsheet computes; after OWASP's page on CSV injection."""

BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters without a shape that Unicode counts as printable: fillers, blanks, variation selectors."""


def visible(text: str) -> str:
    r"""The text with every character that has no shape as its escape, such as `\x1b` or `\u202e`.

    Line breaks too: the result is one line.
    """
    if text.isascii() and text.isprintable():
        return text
    shown = text if text.isprintable() else "".join(map(_shown, text))
    return BLANK.sub(lambda blank: blank[0].encode("ascii", "backslashreplace").decode("ascii"), shown)


def _shown(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def visible_lines(text: str) -> str:
    """As `visible`, with the line breaks kept."""
    return "\n".join(visible(line) for line in text.split("\n"))


def inert(value: Any) -> Any:
    """A value for a cell of a spreadsheet: visible text, with an apostrophe in front of what would be computed."""
    if not isinstance(value, str):
        return value
    text = visible_lines(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA) and not NUMBER.fullmatch(text) else text


def shortened(text: str, most: int) -> str:
    """The text, or its first `most` characters with the number of the others."""
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]}... ({left} more characters)"


def quoted(value: object) -> str:
    """A value for a message: JSON, ASCII, at most about 60 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:56]}..."
