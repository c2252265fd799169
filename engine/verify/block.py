"""Block verification of a chain (Sun et al. 2403.10444): one joint decision on the whole draft.

With r_i = p_i(x_i) / q_i(x_i), P_0 = 1 and P_i = min(1, P_{i-1} r_i), a prefix of i
tokens is kept with probability h_i = R_i / (R_i + 1 - P_i), where R_i is the mass of
max(P_i p_{i+1} - q_{i+1}, 0), and h_gamma = P_gamma; the longest prefix that passes is kept. The emitted law is p, and
the mean accepted length is at least that of the token-wise rule. Each place has its own acceptance number. The
decision reads drafts and numbers behind the tokens that it keeps, so each step also has its own numbers: with numbers
keyed by position alone, the next step would reuse numbers that an earlier decision has read.
"""

from dataclasses import dataclass

import numpy as np

from engine.core.types import DraftRule, Emitted, Examined, Floats, Proposal, Protocol, Role, StepOutcome
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import TargetRows, inverse_cdf, one_hot
from engine.verify.interface import VerifierFacts, last_role, q_of, require_q


@dataclass(frozen=True, slots=True)
class DraftPrefix:
    """The first i drafted tokens: the weight P_i, the chance h_i = `over` / `total`, and what is left to emit from.

    left: [V] max(P_i p_{i+1} - q_{i+1}, 0), or p_{gamma+1} after the whole draft.
    """

    weight: float
    over: float
    total: float
    left: Floats


class BlockVerifier:
    """Keeps the longest prefix whose test passes."""

    facts = VerifierFacts(
        Protocol.BLOCK, lossless=True, draft_rule=DraftRule.INDEPENDENT, trees=False, fresh_numbers=True
    )

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """Test prefixes from the longest to the shortest.

        Raises:
            InvalidRequest: the proposal branches, or its q is unknown.
        """
        require_q(proposal, Protocol.BLOCK)
        gamma = len(proposal.tree)
        prefixes = prefixes_of(proposal, rows)
        numbers = [randomness.uniform(rows.position + i, Purpose.ACCEPT) for i in range(gamma)]
        kept = next((i for i in range(gamma, 0, -1) if numbers[i - 1] * prefixes[i].total < prefixes[i].over), 0)
        examined = tuple(
            Examined(i, float(rows[i].p[token]), q_of(proposal, i), numbers[i], i < kept)
            for i, token in enumerate(proposal.tree.tokens)
        )
        emitted = [
            Emitted(token, Role.ACCEPTED, i, float(rows[i].p[token]))
            for i, token in enumerate(proposal.tree.tokens[:kept])
        ]
        left = prefixes[kept].left
        purpose = Purpose.BONUS if kept == gamma else Purpose.RESIDUAL
        u = randomness.uniform(rows.position + kept, purpose)
        p = rows[kept].p
        token = inverse_cdf(left if left.sum() > 0 else p, u)
        emitted.append(Emitted(token, last_role(proposal, kept < gamma), kept, float(p[token]), u))
        mass = float(left.sum()) if kept < gamma else float("nan")
        return StepOutcome(tuple(emitted), examined, mass, joint=True)


def prefixes_of(proposal: Proposal, rows: TargetRows) -> list[DraftPrefix]:
    """The gamma + 1 prefixes of a drafted chain, the empty one first."""
    gamma, weight, result = len(proposal.tree), 1.0, []
    for i in range(gamma + 1):
        if i:
            token = proposal.tree.tokens[i - 1]
            weight = min(1.0, weight * float(rows[i - 1].p[token]) / q_of(proposal, i - 1))
        if i == gamma:
            result.append(DraftPrefix(weight, weight, 1.0, rows[i].p))
            break
        left = np.maximum(weight * rows[i].p - _q_row(proposal, i, len(rows[i].p)), 0.0)
        over = float(left.sum())
        result.append(DraftPrefix(weight, over, over + 1.0 - weight, left))
    return result


def _q_row(proposal: Proposal, node: int, vocabulary: int) -> Floats:
    """[V] the distribution that a drafted token was drawn from."""
    if proposal.q is None:
        return one_hot(proposal.tree.tokens[node], vocabulary)
    row: Floats = proposal.q[node]
    return row
