"""Where two texts part, in words for a finding; token ids alone tell a reader nothing."""

from typing import Final

BEFORE: Final = 24
AFTER: Final = 16


def parting(ours: str, theirs: str, our_name: str = "it", their_name: str = "the baseline") -> str:
    """The end of what both wrote, and how each went on; empty for equal texts. Unprintable characters are escaped.

    Texts part at or before the first differing token: different tokens can begin with the same characters.
    """
    if ours == theirs:
        return ""
    shorter = min(len(ours), len(theirs))
    at = next((index for index in range(shorter) if ours[index] != theirs[index]), shorter)
    before = ours[max(0, at - BEFORE) : at]
    return f"after {before!r} {our_name} wrote {_next(ours, at)}, {their_name} {_next(theirs, at)}"


def _next(text: str, at: int) -> str:
    return repr(text[at : at + AFTER]) if at < len(text) else "nothing"
