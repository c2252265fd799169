"""Promises of equal bits, and the drafts that each covers."""

from __future__ import annotations

from typing import Final

PROMISES: Final = ("none", "chain", "tree", "everywhere")
"""Weakest promise first; each includes the ones before it."""


def keeps(promises: str | None, shape: str) -> bool:
    """True if the promise covers passes with drafts of that shape."""
    needed = "tree" if shape == "tree" else "chain"
    return promises in PROMISES and PROMISES.index(promises) >= PROMISES.index(needed)
