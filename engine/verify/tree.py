"""Rejection sampling over a token tree, for every sibling rule.

At a node the children are tried in order against what is left of p: accept c if u q(c) < p'(c), else p' becomes
norm(max(p' - q, 0)); after the last refusal emit from p'. With q the distribution that the child was drawn from *given
its earlier siblings*, the emitted law is p, by induction over the children:

* drawn with replacement, every sibling has the same q (SpecInfer 2305.09781);
* drawn without, q has lost the earlier siblings and is renormalised (Sequoia 2402.12374);
* a fixed set of candidates has one-hot rows, so c is accepted with p'(c) (EAGLE-2 2406.16858);
* several drafters give each child its own q, if they draw independently of each other.

A common fault verifies children drawn without replacement with the full q.
"""

from dataclasses import dataclass

from engine.core.trees import ROOT, children
from engine.core.types import DraftRule, Emitted, Examined, Floats, Proposal, Protocol, Role, StepOutcome
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import TargetRows, inverse_cdf
from engine.verify.chain import residual
from engine.verify.interface import VerifierFacts, last_role, q_of, require_q


@dataclass(frozen=True, slots=True)
class _ChildTests:
    """The children of one node after their tests: the one kept, or ROOT, and what is left of p."""

    kept: int
    left: Floats
    mass: float
    examined: tuple[Examined, ...]


class TreeVerifier:
    """Rejection sampling, child after child, level after level."""

    facts = VerifierFacts(Protocol.TREE, lossless=True, draft_rule=DraftRule.INDEPENDENT, trees=True)

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """Walk down from the root while a child is accepted. Raises InvalidRequest: the proposal's q is unknown."""
        require_q(proposal, Protocol.TREE, chain=False)
        emitted: list[Emitted] = []
        examined: list[Examined] = []
        node = ROOT
        while True:
            row, position = node + 1, rows.position + len(emitted)
            tried = _try_children(proposal, node, rows[row].p, position, randomness)
            examined.extend(tried.examined)
            if tried.kept == ROOT:
                emitted.append(_last(proposal, row, rows[row].p, tried, position, randomness))
                return StepOutcome(tuple(emitted), tuple(examined), tried.mass)
            token = proposal.tree.tokens[tried.kept]
            emitted.append(Emitted(token, Role.ACCEPTED, row, float(rows[row].p[token])))
            node = tried.kept


def _try_children(proposal: Proposal, node: int, p: Floats, position: int, randomness: Randomness) -> _ChildTests:
    """Test the children of `node` against p [V]; each has an acceptance number of its own."""
    left, mass = p, float("nan")
    examined: list[Examined] = []
    for order, child in enumerate(children(proposal.tree, node)):
        token = proposal.tree.tokens[child]
        p_left, q = float(left[token]), q_of(proposal, child)
        u = randomness.uniform(position, Purpose.ACCEPT, order)
        accepted = u * q < p_left
        examined.append(Examined(child, p_left, q, u, accepted))
        if accepted:
            return _ChildTests(child, left, mass, tuple(examined))
        over = residual(left, proposal, child)
        mass = float(over.sum())
        if mass == 0:
            # only rounding leads here: p' and q agree to the last bit, so the token is drawn from p'
            break
        left = over / mass
    return _ChildTests(ROOT, left, mass, tuple(examined))


def _last(
    proposal: Proposal, row: int, p: Floats, tried: _ChildTests, position: int, randomness: Randomness
) -> Emitted:
    purpose = Purpose.RESIDUAL if tried.examined else Purpose.BONUS
    u = randomness.uniform(position, purpose)
    token = inverse_cdf(tried.left, u)
    return Emitted(token, last_role(proposal, bool(tried.examined)), row, float(p[token]), u)
