"""Prompt lookup: propose what followed the last occurrence of the current suffix.

The longest suffix of `max_ngram` down to `min_ngram` tokens that occurred earlier in the history wins, the latest
occurrence among equals. The draft is a deterministic function of the prefix, so q is one-hot. No weights, no state.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.types import Proposal, QKind, Tree
from engine.proposers.interface import Context, ProposerFacts, ProposerParts, StatelessProposer
from engine.proposers.options import read


class NgramProposer(StatelessProposer):
    """Copies continuations from the request's own history, which holds the whole state."""

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self.facts = ProposerFacts(
            "ngram",
            q_kind=QKind.ONE_HOT,
            can_couple=False,
            state="none",
            options={"min_ngram": min_ngram, "max_ngram": max_ngram},
            copies=True,
            reads_target=False,
        )

    @classmethod
    def build(cls, parts: ProposerParts) -> NgramProposer:
        """From options `min_ngram` and `max_ngram`.

        Raises:
            InvalidRequest: the smallest suffix is longer than the largest, so that the proposer could never draft.
        """
        options = read("ngram", parts.options)
        return cls(options["min_ngram"], options["max_ngram"])

    def propose(self, contexts: Sequence[Context]) -> Sequence[Proposal]:
        """A chain where a suffix recurs, an empty proposal elsewhere."""
        return [self._lookup(context) for context in contexts]

    def _lookup(self, context: Context) -> Proposal:
        history = list(context.history)
        for size in self._sizes:
            count = last_occurrence(history, size)
            if count is not None:
                tokens = tuple(history[count + size : count + size + context.budget])
                return Proposal(Tree.chain(tokens), QKind.ONE_HOT) if tokens else Proposal()
        return Proposal()


def last_occurrence(history: list[int], size: int) -> int | None:
    """Where the last `size` tokens occurred before, latest first; None if they never did."""
    suffix = history[-size:]
    for start in range(len(history) - size - 1, -1, -1):
        if history[start : start + size] == suffix:
            return start
    return None
