"""The checks. Each is a pure function of evidence; its module exports it as `CHECK`.

To add a check, add one file and one line in `REGISTRY`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from audit.errors import UserError
from engine.core import registry

if TYPE_CHECKING:
    from audit.checks.base.interface import Check

REGISTRY: Final[Mapping[str, str]] = {
    "liveness": "audit.checks.liveness:CHECK",
    "configuration": "audit.checks.configuration:CHECK",
    "identity": "audit.checks.service.identity:CHECK",
    "surface_parity": "audit.checks.service.surface_parity:CHECK",
    "reconciliation": "audit.checks.reconciliation:CHECK",
    "text": "audit.checks.text:CHECK",
    "constraint_replay": "audit.checks.constraint_replay:CHECK",
    "schema_conformance": "audit.checks.schema_conformance.check:CHECK",
    "accounting": "audit.checks.accounting.check:CHECK",
    "replay": "audit.checks.replay.check:CHECK",
    "rng_streams": "audit.checks.rng_streams.check:CHECK",
    "tool_call_equality": "audit.checks.tool_calls.check:CHECK",
    "greedy_equality": "audit.checks.equality.greedy:CHECK",
    "coupled_equality": "audit.checks.equality.coupled:CHECK",
    "same_seed": "audit.checks.same_seed:CHECK",
    "long_context": "audit.checks.long_context.check:CHECK",
    "bitwise": "audit.checks.bitwise:CHECK",
    "row_closeness": "audit.checks.anchor.row_closeness:CHECK",
    "seed": "audit.checks.seed:CHECK",
    "gamma_invariance": "audit.checks.gamma_invariance:CHECK",
    "logprob_closeness": "audit.checks.logprob_closeness:CHECK",
    "performance": "audit.checks.performance:CHECK",
    "two_sample": "audit.checks.two_sample:CHECK",
    "acceptance_drift": "audit.checks.acceptance_drift:CHECK",
    "acceptance_outliers": "audit.checks.acceptance_outliers:CHECK",
    "law": "audit.checks.law.check:CHECK",
    "honoured": "audit.checks.honoured.check:CHECK",
    "honoured_by_tokens": "audit.checks.honoured.by_tokens:CHECK",
    "q_contract": "audit.checks.q_contract.check:CHECK",
    "token_law": "audit.checks.token_law.check:CHECK",
    "anchor": "audit.checks.anchor.check:CHECK",
    "transcript": "audit.checks.transcript.check:CHECK",
    "draft_anchor": "audit.checks.draft_anchor:CHECK",
    "prefix_measurable": "audit.checks.prefix_measurable.check:CHECK",
    "acceptance_theory": "audit.checks.acceptance_theory:CHECK",
    "no_leak": "audit.checks.no_leak:CHECK",
    "filter_equality": "audit.checks.filter_equality:CHECK",
    "second_accounts": "audit.checks.accounts.check:CHECK",
}


def names() -> tuple[str, ...]:
    """The registered checks, in the order in which they are reported."""
    return tuple(REGISTRY)


def load(name: str) -> Check:
    """The check behind a registered name.

    Raises:
        UserError: the name is not registered; the message lists the registered names.
    """
    if name not in REGISTRY:
        raise UserError(f"unknown check {name!r}; known: {', '.join(sorted(REGISTRY))}")
    check: Check = registry.load(REGISTRY[name])
    return check


def known(name: str) -> Check | None:
    """The check behind a name; None for one that this version does not have."""
    return load(name) if name in REGISTRY else None
