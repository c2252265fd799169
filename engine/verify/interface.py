"""The interface of a verification rule, and the walk of rules that compare drafts with the target's own choice.

A rule sees transformed rows and random numbers, never models or caches. At each node of the walk the target chooses a
token on its own; the walk continues while a child carries that token. The walk is lossless for any draft that does not
depend on the choice (methods note B1.4), and exact in trees.
"""

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.core.errors import InvalidRequest
from engine.core.trees import ROOT, children, is_chain
from engine.core.types import DraftRule, Emitted, Examined, Proposal, Protocol, QKind, Role, StepOutcome
from engine.sampling.rng import Randomness
from engine.sampling.transforms import TargetRows

Choose = Callable[[int, int], int]
"""(row, absolute position) -> the target's own token."""


def match(proposal: Proposal, rows: TargetRows, choose: Choose) -> StepOutcome:
    """Keep the drafted path that the target itself chooses, then the target's next token."""
    tree = proposal.tree
    emitted: list[Emitted] = []
    examined: list[Examined] = []
    node = ROOT
    while True:
        row = node + 1
        token = choose(row, rows.position + len(emitted))
        offered = children(tree, node)
        kept = ROOT
        for child in offered:
            accepted = tree.tokens[child] == token
            examined.append(_examined(proposal, rows, child, accepted))
            if accepted:
                kept = child
                break
        role = Role.ACCEPTED if kept != ROOT else last_role(proposal, bool(offered))
        emitted.append(Emitted(token, role, row, rows.chance(row, token)))
        if kept == ROOT:
            return StepOutcome(tuple(emitted), tuple(examined))
        node = kept


def _examined(proposal: Proposal, rows: TargetRows, node: int, accepted: bool) -> Examined:
    token = proposal.tree.tokens[node]
    p = rows.chance(proposal.tree.parents[node] + 1, token)
    return Examined(node, p, q_of(proposal, node), float("nan"), accepted)


def last_role(proposal: Proposal, offered: bool) -> Role:
    """The role of a step's last token: whether drafted tokens were `offered` at its place, or anywhere."""
    if offered:
        return Role.RECOVERED
    return Role.BONUS if len(proposal.tree) else Role.PLAIN


def q_of(proposal: Proposal, node: int) -> float:
    """The drafted token's q: 1 for a deterministic draft, NaN where q is not known."""
    if proposal.q_kind is QKind.ONE_HOT:
        return 1.0
    return float("nan") if proposal.q is None else float(proposal.q[node, proposal.tree.tokens[node]])


def require_q(proposal: Proposal, rule: Protocol, *, chain: bool = True) -> None:
    """Refuse a draft that a rule which compares with q cannot verify; with `chain`, one that branches too.

    Raises:
        InvalidRequest: as said.
    """
    if chain and not is_chain(proposal.tree):
        raise InvalidRequest(f"the {rule} rule cannot verify a branching tree; use the tree, gumbel or greedy rule")
    if len(proposal.tree) and proposal.q_kind is QKind.NONE:
        raise InvalidRequest(f"the {rule} rule needs q, and this proposer gives none; use the gumbel or greedy rule")


@dataclass(frozen=True, slots=True)
class VerifierFacts:
    """A rule's declared properties."""

    protocol: Protocol
    lossless: bool
    """The emitted law is the target's, for any draft."""
    draft_rule: DraftRule
    """The draft rule with the highest acceptance rate."""
    trees: bool
    """The rule accepts branching proposals."""
    fresh_numbers: bool = False
    """Every step needs its own random numbers, because a decision reads numbers of positions that it does not decide.
    """
    options: Mapping[str, typing.Any] = field(default_factory=dict)
    """The rule's options in effect, defaults included."""


class Verifier(typing.Protocol):
    """Decides which drafted tokens are kept and which token follows them."""

    facts: VerifierFacts

    def verify(self, proposal: Proposal, rows: TargetRows, randomness: Randomness) -> StepOutcome:
        """The verdict on one request's proposal. Always emits at least one token."""
