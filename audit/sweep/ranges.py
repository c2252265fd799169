"""Parses draft lengths: `4`, `1..8`, `1,2,4`, `1..4,8`."""

from __future__ import annotations

import re
from typing import Final

from audit.errors import UserError
from audit.text.unsafe import quoted

MOST: Final = 64
"""Longest draft length, so that a typo does not run for a day."""
PART: Final = re.compile(r"([0-9]{1,4})(?:\.\.([0-9]{1,4}))?")


def parse_gammas(text: str) -> tuple[int, ...]:
    """Return the draft lengths, ascending and unique.

    Raises:
        UserError: the syntax is invalid, a range runs backwards, or a length is outside 1 to 64.
    """
    return tuple(sorted({gamma for part in text.split(",") for gamma in _part(text, part.strip())}))


def _part(text: str, part: str) -> range:
    matched = PART.fullmatch(part)
    if matched is None:
        raise _mistake(text, f"{quoted(part)} is no draft length; write 1..8 or 1,2,4")
    low = int(matched[1])
    high = int(matched[2] or low)
    if low > high:
        raise _mistake(text, f"{part} runs backwards; write {high}..{low}")
    if low < 1 or high > MOST:
        raise _mistake(text, f"{part} leaves 1 to {MOST}; choose lengths between them")
    return range(low, high + 1)


def _mistake(text: str, problem: str) -> UserError:
    return UserError(f"--gamma {quoted(text)}: {problem}")
