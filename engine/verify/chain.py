"""Token-wise rejection sampling of a chain (Leviathan et al. 2211.17192, Chen et al. 2302.01318).

Accept x ~ q if u q(x) < p(x); at the first rejection emit from the residual norm(max(p - q, 0)); after the last
acceptance emit a bonus from p. The emitted law is p for any q that is the draft's true law; a deterministic draft has a
one-hot q. Acceptance, residual and bonus numbers come from separate streams.
"""

import numpy as np

from engine.core.types import DraftRule, Emitted, Examined, Floats, Proposal, Protocol, QKind, Role, StepOutcome
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import TargetRows, inverse_cdf
from engine.verify.interface import VerifierFacts, q_of, require_q


class ChainVerifier:
    """Rejection sampling with soft or one-hot q."""

    facts = VerifierFacts(Protocol.CHAIN, lossless=True, draft_rule=DraftRule.INDEPENDENT, trees=False)

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """Test the drafted tokens one after the other.

        Raises:
            InvalidRequest: the proposal branches, or its q is unknown.
        """
        require_q(proposal, Protocol.CHAIN)
        emitted: list[Emitted] = []
        examined: list[Examined] = []
        for node, token in enumerate(proposal.tree.tokens):
            position = rows.position + node
            p, q = float(rows[node].p[token]), q_of(proposal, node)
            u = randomness.uniform(position, Purpose.ACCEPT)
            # strict, so that u = 0 does not accept a token of probability zero
            accepted = u * q < p
            examined.append(Examined(node, p, q, u, accepted))
            if not accepted:
                left = residual(rows[node].p, proposal, node)
                emitted.append(recover(rows[node].p, left, node, randomness.uniform(position, Purpose.RESIDUAL)))
                return StepOutcome(tuple(emitted), tuple(examined), float(left.sum()))
            emitted.append(Emitted(token, Role.ACCEPTED, node, p))
        emitted.append(self._last(proposal, rows, randomness))
        return StepOutcome(tuple(emitted), tuple(examined))

    def _last(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> Emitted:
        row = len(proposal.tree)
        u = randomness.uniform(rows.position + row, Purpose.BONUS)
        p = rows[row].p
        token = inverse_cdf(p, u)
        return Emitted(token, Role.BONUS if row else Role.PLAIN, row, float(p[token]), u)


def residual(p: Floats, proposal: Proposal, node: int) -> Floats:
    """[V] max(p - q, 0), not normalised."""
    if proposal.q_kind is QKind.ONE_HOT or proposal.q is None:
        left = p.copy()
        left[proposal.tree.tokens[node]] = 0.0
        return left
    return np.asarray(np.maximum(p - proposal.q[node], 0.0))


def recover(p: Floats, left: Floats, row: int, u: float) -> Emitted:
    """A token from the residual `left`.

    If rounding left no mass, p and q agree to the last bit and p is used instead; the record then holds a residual
    mass of 0.
    """
    token = inverse_cdf(left if left.sum() > 0 else p, u)
    return Emitted(token, Role.RECOVERED, row, float(p[token]), u)
