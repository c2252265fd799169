"""The part of a decoded text that later tokens cannot change, nor turn into a stop string.

Holds for tokenizers whose decoding of more tokens continues that of fewer ones but for an incomplete character at the
end. One that rewrites text it has already given, by cleaning up blanks, makes a stream whose chunks do not add up to
the text; check `no_leak` reports it.
"""

from collections.abc import Sequence
from typing import Final

INCOMPLETE: Final = "\ufffd"
"""Output of decoders for a character whose bytes have not all come."""


def whole(text: str) -> str:
    """The text without an incomplete character at its end."""
    return text.rstrip(INCOMPLETE)


def settled(text: str, stops: Sequence[str]) -> str:
    """The text without an incomplete character, and without an end that may become a stop string."""
    text = whole(text)
    return text[: len(text) - max((_begun(text, stop) for stop in stops), default=0)]


def _begun(text: str, stop: str) -> int:
    """Length of the longest end of the text with which the stop string, but not the whole of it, begins."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)
