"""Shared-randomness verification: keep what equals the target's own sample.

The target samples by Gumbel-max under noise keyed by (seed, stream, absolute position), so the emitted tokens are those
of plain decoding with the same keys, token by token, for every proposer (Daliri, Musco and Suresh 2408.07978). The rule
needs no q. A draft that uses the same noise is accepted more often; an acceptance test on p / q must never be combined
with such a draft, because the emitted law would then differ from p.
"""

from engine.core.types import DraftRule, Proposal, Protocol, StepOutcome
from engine.sampling.rng import Randomness
from engine.sampling.transforms import TargetRows, gumbel_argmax
from engine.verify.interface import VerifierFacts, match


class GumbelVerifier:
    """Accept iff the draft equals the target's own Gumbel-max sample."""

    facts = VerifierFacts(Protocol.GUMBEL, lossless=True, draft_rule=DraftRule.COUPLED, trees=True)

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """Compare with argmax(log p + noise at the position)."""

        def choose(row: int, position: int) -> int:
            if rows.greedy:
                # noise does not move a choice that has all the mass
                return rows.best(row)
            p = rows[row].p
            return gumbel_argmax(p, randomness.gumbel(position, len(p)))

        return match(proposal, rows, choose)
