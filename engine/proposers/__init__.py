"""Proposers, one file per family.

A proposer is added by one file, one line in `engine.core.registry.PROPOSERS`, one in
`engine.proposers.options` if it has options, and one docs page; the conformance
test picks it up by itself. Each class has `build(parts: ProposerParts) -> Proposer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from engine.core.registry import PROPOSERS, resolve
from engine.proposers.options import token_cost

if TYPE_CHECKING:
    # names and options are read without torch, which these import
    from engine.proposers.interface import Proposer, ProposerParts

REGISTRY: Final = PROPOSERS


def build(kind: str, parts: ProposerParts) -> Proposer:
    """A proposer of a registered kind.

    Raises:
        InvalidRequest: unknown kind, an unknown option or an invalid value, a head of another family, or a target from
            whose states the kind cannot draft.
        ModelNeeded: a missing draft model or head.
        ModelError: a head that does not fit the target.
    """
    proposer: Proposer = resolve(REGISTRY, kind, "proposer").build(parts)
    if not (cost := token_cost(kind, parts.options)):
        return proposer
    from engine.proposers.adaptive_length import PayingProposer

    return PayingProposer(proposer, cost)
