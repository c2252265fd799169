"""A proposer's promise on the lengths of its drafts; its own module, so that reading a store stays light."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SteadyDrafts:
    """Every step drafts a chain as long as gamma and the request's end allow, for any text.

    This holds for prefixes of at least two tokens, because hidden states exist only after one has been read.

    context: the largest number of tokens, prefix and draft together, for which this holds.
    most: the most tokens that the proposer drafts in one step; None without a limit of its own.
    """

    context: int
    most: int | None = None
