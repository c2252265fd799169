"""Greedy verification: keep what equals the target's argmax.

Ties go to the lowest token id, as in plain greedy decoding. The rule needs neither q nor random numbers and ignores a
temperature above 0.
"""

from engine.core.types import DraftRule, Proposal, Protocol, StepOutcome
from engine.sampling.rng import Randomness
from engine.sampling.transforms import TargetRows
from engine.verify.interface import VerifierFacts, match


class GreedyVerifier:
    """Longest drafted path equal to the target's argmax, plus one target token."""

    facts = VerifierFacts(Protocol.GREEDY, lossless=True, draft_rule=DraftRule.GREEDY, trees=True)

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:  # noqa: ARG002 - protocol
        """Compare with the argmax of the transformed scores."""
        return match(proposal, rows, lambda row, _position: rows.best(row))
