"""Promises of equal bits, and the drafts that each covers."""

from typing import Final

from engine.record.effective import Effective

PROMISES: Final = ("none", "chain", "tree", "everywhere")
"""Weakest promise first; each includes the ones before it."""


def keeps(promises: str | None, shape: str) -> bool:
    """True if the promise covers passes with drafts of that shape."""
    needed = "tree" if shape == "tree" else "chain"
    return promises in PROMISES and PROMISES.index(promises) >= PROMISES.index(needed)


def promised(effective: Effective) -> bool:
    """True if the numerics in effect promise that the arm's rows have the bits of decoding without drafts."""
    numerics = effective.numerics
    return numerics is not None and keeps(numerics.promises, effective.proposer_shape or "chain")
