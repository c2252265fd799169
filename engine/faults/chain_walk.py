"""The chain rule in replaceable pieces, for faults that break one of them.

With no piece replaced, `ChainWalk` gives the verdicts of `engine.verify.chain`, number for number.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.core.types import Emitted, Examined, Floats, Proposal, Role, StepOutcome
from engine.faults.interface import ChangeParts
from engine.sampling.rng import Purpose, Randomness
from engine.sampling.transforms import TargetRows, inverse_cdf
from engine.verify.chain import recover, residual
from engine.verify.interface import VerifierFacts, q_of


@dataclass(frozen=True, slots=True)
class Trial:
    """One drafted token under test: `p` [V] is the row to test it against, `u` its acceptance number."""

    proposal: Proposal
    node: int
    p: Floats
    u: float
    position: int
    numbers: Randomness

    @property
    def token(self) -> int:
        """The drafted token."""
        return self.proposal.tree.tokens[self.node]

    @property
    def p_token(self) -> float:
        """The probability of the token under p."""
        return float(self.p[self.token])

    @property
    def q_token(self) -> float:
        """The probability of the token under q."""
        return q_of(self.proposal, self.node)


@dataclass(frozen=True, slots=True)
class Ending:
    """The state after the last acceptance: `p` [V] is the row of the next token."""

    proposal: Proposal
    p: Floats
    position: int
    numbers: Randomness


def row_p(rows: TargetRows, row: int) -> Floats:
    """[V] the distribution of the row after all transforms."""
    return rows[row].p


def accepts(trial: Trial) -> bool:
    """Accept with probability min(1, p / q)."""
    return trial.u * trial.q_token < trial.p_token


def positive_part(trial: Trial) -> Floats:
    """[V] max(p - q, 0)."""
    return residual(trial.p, trial.proposal, trial.node)


def replace_token(trial: Trial, left: Floats) -> Emitted:
    """Draw from the residual."""
    return recover(trial.p, left, trial.node, trial.numbers.uniform(trial.position, Purpose.RESIDUAL))


def bonus(ending: Ending) -> tuple[Emitted, ...]:
    """Draw from p."""
    row, u = len(ending.proposal.tree), ending.numbers.uniform(ending.position, Purpose.BONUS)
    token = inverse_cdf(ending.p, u)
    return (Emitted(token, Role.BONUS if row else Role.PLAIN, row, float(ending.p[token]), u),)


@dataclass(slots=True)
class ChainWalk:
    """A chain verifier made of pieces.

    tested: the row that a drafted token is tested against.
    accept: the acceptance test.
    left: the residual after a rejection.
    recover: the token that replaces the rejected one.
    ends: the row of the bonus token.
    last: the tokens emitted after full acceptance.
    """

    facts: VerifierFacts
    tested: Callable[[TargetRows, int], Floats] = row_p
    accept: Callable[[Trial], bool] = accepts
    left: Callable[[Trial], Floats] = positive_part
    recover: Callable[[Trial, Floats], Emitted] = replace_token
    ends: Callable[[TargetRows, int], Floats] = row_p
    last: Callable[[Ending], tuple[Emitted, ...]] = bonus

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """Test the drafted tokens one after the other."""
        emitted: list[Emitted] = []
        examined: list[Examined] = []
        for node in range(len(proposal.tree)):
            position = rows.position + node
            u = randomness.uniform(position, Purpose.ACCEPT)
            trial = Trial(proposal, node, self.tested(rows, node), u, position, randomness)
            accepted = self.accept(trial)
            examined.append(Examined(node, trial.p_token, trial.q_token, u, accepted))
            if not accepted:
                left = self.left(trial)
                emitted.append(self.recover(trial, left))
                return StepOutcome(tuple(emitted), tuple(examined), float(left.sum()))
            emitted.append(Emitted(trial.token, Role.ACCEPTED, node, trial.p_token))
        end = len(proposal.tree)
        ending = Ending(proposal, self.ends(rows, end), rows.position + end, randomness)
        return StepOutcome((*emitted, *self.last(ending)), tuple(examined))


def with_walk(walk: Callable[[VerifierFacts], ChainWalk]) -> ChangeParts:
    """Replace the chain rule; `walk` builds the broken rule from the facts that the intact rule declares."""
    return lambda parts: replace(parts, verifier=walk(parts.verifier.facts))
