"""The text that leaves instead of the text that was generated.

Marked characters leave as one `REDACTED` for every unbroken run of them, whichever filters marked them and in however
many pieces they leave.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

REDACTED: Final = "[redacted]"


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [start, end) of a text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RedactedText:
    """A part of the text as it leaves. `inside` is true if it ends in the middle or at the end of a redacted run."""

    text: str
    inside: bool


def redact(text: str, spans: Iterable[Span], start: int = 0, *, inside: bool = False) -> RedactedText:
    """The visible `text` from character `start` on, if the part before it ended `inside` a redacted run."""
    hidden = bytearray(len(text))
    for span in spans:
        hidden[span.start : span.end] = b"\1" * len(hidden[span.start : span.end])
    parts = []
    for at in range(start, len(text)):
        if not hidden[at]:
            parts.append(text[at])
        elif not inside:
            parts.append(REDACTED)
        inside = bool(hidden[at])
    return RedactedText("".join(parts), inside)
